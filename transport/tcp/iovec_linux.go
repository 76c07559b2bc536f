package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file holds the package's only unsafe code: system calls that are handed
// the addresses of buffers. It relies on:
//
//   - a vectors' entries point into buffers of the caller, or are empty. They are
//     set by fill and emptied by clear, and the caller keeps the buffers alive in
//     between; the garbage collector sees the pointers, since an Iovec has a *byte;
//   - a vectors lies on the heap, as part of a socket, so that it does not move
//     while the kernel reads it;
//   - the kernel touches the memory only during the call.

// vectors describes the memory of one transfer. It is kept in a socket, so that a
// transfer allocates nothing.
type vectors struct {
	list  [maxBuffers]unix.Iovec
	count int
	total int // bytes
	head  unix.Msghdr
}

// fill takes the first maxBuffers buffers that are not empty.
func (v *vectors) fill(buffers [][]byte) {
	v.count, v.total = 0, 0
	for _, b := range buffers {
		if len(b) == 0 {
			continue
		}
		if v.count == maxBuffers {
			break
		}
		e := &v.list[v.count]
		e.Base = unsafe.SliceData(b)
		e.SetLen(len(b))
		v.count++
		v.total += len(b)
	}
}

// trim leaves only the first total bytes, at least one and not more than there are.
func (v *vectors) trim(total int) {
	v.total = total
	for i := range v.count {
		e := &v.list[i]
		if uint64(e.Len) >= uint64(total) {
			e.SetLen(total)
			v.count = i + 1
			return
		}
		total -= int(e.Len)
	}
}

// clear forgets the buffers.
func (v *vectors) clear() {
	for i := range v.list {
		v.list[i].Base = nil
	}
	v.count, v.total = 0, 0
}

// longTransfer is from how many bytes on the scheduler is told of a call: the copy
// takes longer than the telling, and the processor may be given to another
// goroutine meanwhile. Nothing below it blocks, so nobody needs to know.
const longTransfer = 64 << 10

// kernel is the system as it is.
type kernel struct{}

const transferFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL

func (kernel) send(fd int, v *vectors) (int, unix.Errno) {
	if v.count == 1 {
		e := &v.list[0]
		if v.total < longTransfer {
			n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(e.Base)), uintptr(v.total), transferFlags, 0, 0)
			return int(n), errno
		}
		n, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(e.Base)), uintptr(v.total), transferFlags, 0, 0)
		return int(n), errno
	}
	return v.message(unix.SYS_SENDMSG, fd)
}

func (kernel) receive(fd int, v *vectors) (int, unix.Errno) {
	if v.count == 1 {
		e := &v.list[0]
		if v.total < longTransfer {
			n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(e.Base)), uintptr(v.total), transferFlags, 0, 0)
			return int(n), errno
		}
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(e.Base)), uintptr(v.total), transferFlags, 0, 0)
		return int(n), errno
	}
	return v.message(unix.SYS_RECVMSG, fd)
}

// message transfers several buffers with one call of sendmsg or recvmsg: writev
// would do but for the signal.
func (v *vectors) message(call uintptr, fd int) (int, unix.Errno) {
	v.head = unix.Msghdr{Iov: &v.list[0]}
	v.head.SetIovlen(v.count)
	if v.total < longTransfer {
		n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&v.head)), transferFlags)
		return int(n), errno
	}
	n, _, errno := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&v.head)), transferFlags)
	return int(n), errno
}
