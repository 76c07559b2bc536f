//go:build unix

package herd

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// input returns what rank 0 reads: from itself, or a pipe that is fed from it when
// it is a terminal. stop ends the feeding.
func input(from *os.File) (stdin *os.File, stop func(), err error) {
	nothing := func() {}
	if from == nil {
		return nil, nothing, nil
	}
	if _, err := foreground(from); err != nil {
		return from, nothing, nil // not a terminal, or not ours
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nothing, err
	}
	wakeRead, wakeWrite, err := os.Pipe()
	if err != nil {
		r.Close()
		w.Close()
		return nil, nothing, err
	}
	t := &terminal{from: from, to: w, wake: wakeRead, stop: make(chan struct{}), done: make(chan struct{})}
	go t.feed()
	return r, func() {
		close(t.stop)
		wakeWrite.Close()
		w.Close() // a write may be waiting for a reader
		select {
		case <-t.done:
			wakeRead.Close()
		case <-time.After(time.Second):
			// Somebody else took what there was between its poll and its read, which
			// waits for more now. The process is about to end.
		}
	}, nil
}

// foreground reports whether the terminal's foreground group is ours; an error
// means that f isn't our terminal.
func foreground(f *os.File) (bool, error) {
	fd, err := descriptor(f)
	if err != nil {
		return false, err
	}
	pgid, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return pgid == unix.Getpgrp(), err
}

// descriptor is f's, without making it blocking, as Fd does: a terminal is shared
// with whoever started us.
func descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(n uintptr) { fd = int(n) })
	return fd, err
}

// terminal feeds a pipe from a terminal. Reading one in the background would stop
// the launcher, and a read, once begun, could take what is typed for the shell:
// so it waits for input by poll(2), which nobody minds, and reads what is there
// when it is in the foreground.
type terminal struct {
	from, to, wake *os.File
	stop, done     chan struct{}
}

// glanceEvery is how often it looks for the foreground while there is input that
// nobody reads.
const glanceEvery = 100 * time.Millisecond

func (t *terminal) feed() {
	defer close(t.done)
	defer t.to.Close()
	buf := make([]byte, readBytes)
	for {
		if !t.await() {
			return
		}
		in, err := foreground(t.from)
		if err != nil {
			return // the terminal is gone
		}
		if !in {
			// Shells need not say when they bring us to the foreground.
			select {
			case <-time.After(glanceEvery):
				continue
			case <-t.stop:
				return
			}
		}
		n, err := t.from.Read(buf)
		if n == 0 || err != nil {
			return // the end of input, Ctrl-D
		}
		if _, err := t.to.Write(buf[:n]); err != nil {
			return // rank 0 doesn't read any more
		}
	}
}

// await returns true when there is something to read, false to stop.
func (t *terminal) await() bool {
	in, err := descriptor(t.from)
	if err != nil {
		return false
	}
	wake, err := descriptor(t.wake)
	if err != nil {
		return false
	}
	for {
		fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		return err == nil && fds[1].Revents == 0
	}
}
