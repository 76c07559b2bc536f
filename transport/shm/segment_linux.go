package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mostSegment bounds a segment: a size from outside is checked before it is
// mapped.
const mostSegment = 1 << 40

// segment is a piece of memory that other processes can map.
type segment struct {
	fd     int // -1 when it is not kept
	memory []byte
}

// newSegment makes a zeroed segment. Its pages are reserved now: later there
// would be nobody to tell but a SIGBUS.
func newSegment(size int) (*segment, error) {
	if free := freeMemory(); free >= 0 && int64(size) > free {
		return nil, &SpaceError{Need: int64(size), Free: free}
	}
	fd, err := unix.MemfdCreate("gollective", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: memfd_create: %w", err)
	}
	if err := allocate(fd, int64(size)); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EFBIG) {
			return nil, &SpaceError{Need: int64(size), Free: freeMemory(), Cause: err}
		}
		return nil, fmt.Errorf("shm: fallocate of %d bytes: %w", size, err)
	}
	// Nobody who gets the descriptor can take pages away from under the others.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("shm: sealing: %w", err)
	}
	s, err := mapSegment(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s.fd = fd
	return s, nil
}

func allocate(fd int, size int64) error {
	for {
		err := unix.Fallocate(fd, 0, 0, size)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// mapSegment maps the segment behind fd, which must have the given size and be
// sealed against shrinking. fd stays the caller's.
func mapSegment(fd, size int) (*segment, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	if stat.Size != int64(size) {
		return nil, fmt.Errorf("shm: a segment of %d bytes, expected %d", stat.Size, size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("shm: a segment that can shrink (seals %#x, %v)", seals, err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: mmap of %d bytes: %w", size, err)
	}
	// Both are improvements only: without huge pages or the right to lock
	// memory everything works as well.
	const hugePage = 2 << 20
	if size >= hugePage {
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	}
	_ = unix.Mlock(memory)
	return &segment{fd: -1, memory: memory}, nil
}

func (s *segment) close() {
	_ = unix.Munmap(s.memory)
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
}

// freeMemory is what the host, this process's cgroups and its limit on file sizes
// leave for a segment, -1 if nothing is known.
func freeMemory() int64 {
	free := int64(-1)
	lower := func(v int64) {
		if v >= 0 && (free < 0 || v < free) {
			free = v
		}
	}
	if meminfo, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(meminfo)) {
			if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
				if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64); err == nil {
					lower(kib << 10)
				}
			}
		}
	}
	for path := ownCgroup(); path != ""; path = within(path) {
		limit, current := readNumber(path+"/memory.max"), readNumber(path+"/memory.current")
		if limit >= 0 && current >= 0 {
			lower(max(limit-current+fileCache(path), 0))
		}
	}
	// Beyond this limit the system would send a signal that ends the process.
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &files) == nil && files.Cur < math.MaxInt64 {
		lower(int64(files.Cur))
	}
	return free
}

const cgroups = "/sys/fs/cgroup"

// ownCgroup is the directory of this process's cgroup (version 2), or "".
func ownCgroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return filepath.Join(cgroups, path)
		}
	}
	return ""
}

// within is the cgroup that contains the one given, or "".
func within(path string) string {
	if path == cgroups || !strings.HasPrefix(path, cgroups+"/") {
		return ""
	}
	return filepath.Dir(path)
}

// fileCache is the memory of a cgroup that holds copies of files: it counts as
// used and is given back when it is needed.
func fileCache(path string) (bytes int64) {
	text, err := os.ReadFile(path + "/memory.stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "inactive_file" || name == "active_file" {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				bytes += n
			}
		}
	}
	return bytes
}

// readNumber reads a file that holds one number, -1 if it does not.
func readNumber(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
