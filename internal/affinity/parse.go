package affinity

import (
	"fmt"
	"strconv"
	"strings"
)

// most bounds the numbers of processors.
const most = 1 << 16

// Parse reads a list of processors as Linux writes them: "0-3,8". An empty text is
// an empty mask.
func Parse(text string) (Mask, error) {
	var m Mask
	if text == "" {
		return nil, nil
	}
	for _, item := range strings.Split(text, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(item), "-")
		first, err := strconv.ParseUint(from, 10, 32)
		last := first
		if err == nil && ranged {
			last, err = strconv.ParseUint(to, 10, 32)
		}
		if err != nil || last < first || last >= most {
			return nil, fmt.Errorf("affinity: %q is not a list of processors such as 0-3,8", text)
		}
		for p := first; p <= last; p++ {
			for uint64(len(m)) <= p/64 {
				m = append(m, 0)
			}
			m[p/64] |= 1 << (p % 64)
		}
	}
	return m, nil
}

// List returns the processors of m in order.
func (m Mask) List() []int {
	var list []int
	for p := range len(m) * 64 {
		if m[p/64]>>(p%64)&1 != 0 {
			list = append(list, p)
		}
	}
	return list
}
