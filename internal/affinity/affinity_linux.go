package affinity

import "golang.org/x/sys/unix"

// Own returns the processors on which the calling thread, and with it what it
// starts, may run; nil if the system does not say.
func Own() Mask {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	var m Mask
	for p := range len(set) * 64 {
		if !set.IsSet(p) {
			continue
		}
		for len(m) <= p/64 {
			m = append(m, 0)
		}
		m[p/64] |= 1 << (p % 64)
	}
	return m
}
