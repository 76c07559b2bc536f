package tcp

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/transport"
)

// bundle is one connection between two processes: a main socket, and perhaps more
// that carry large payloads. One goroutine at a time uses it, but for helpers.
type bundle struct {
	main     stream
	crew     *crew // nil without data sockets
	out, in  *stripes
	fds      []int
	writing  []byte // without a crew: what is left of the payload under way
	reading  []byte
	parts    [1][]byte
	closing  sync.Once
	closeErr error
}

// newBundle takes over streams: the data sockets, and the main socket at the end. It
// is for the rank at one end of a link.
func newBundle(streams []stream, threads int, g Greeting, rank int) (*bundle, error) {
	sockets := streams[:len(streams)-1]
	b := &bundle{main: streams[len(sockets)]}
	b.fds = []int{b.main.descriptor()}
	if len(sockets) == 0 {
		return b, nil
	}
	b.crew = newCrew(sockets, threads, transport.Labels(g.Communicator, rank, transport.Helper, g.Link.Channel))
	var err error
	if b.out, err = newStripes(b.crew, true); err == nil {
		b.in, err = newStripes(b.crew, false)
	}
	if err != nil {
		b.crew.close()
		if b.out != nil {
			_ = unix.Close(b.out.event)
		}
		return nil, err
	}
	b.fds = append(b.fds, b.out.event, b.in.event)
	return b, nil
}

// stripes reports whether payloads above those that go with their head are to be
// sent with beginWrite and received with beginRead, over the data sockets.
func (b *bundle) stripes() bool { return b.crew != nil }

// twoWay reports whether a link and its twin may share the connection: each ends its
// direction alone. TLS ends with either.
func (b *bundle) twoWay() bool {
	_, encrypted := b.main.(*tunnel)
	return b.crew == nil && !encrypted
}

// beginWrite starts to send a payload, which must stay as it is until advanceWrite
// is done or close has returned. One at a time is under way.
func (b *bundle) beginWrite(payload []byte) {
	if b.crew == nil {
		b.writing = payload
		return
	}
	b.out.begin(payload)
}

// advanceWrite moves the payload on, without waiting; done says that all of it has
// been handed to the system.
func (b *bundle) advanceWrite() (done bool, err error) {
	if b.crew != nil {
		return b.out.advance()
	}
	for len(b.writing) > 0 && err == nil {
		b.parts[0] = b.writing
		var n int
		if n, err = b.main.write(b.parts[:]); n == 0 {
			break
		}
		b.writing = b.writing[n:]
	}
	b.parts[0] = nil
	return len(b.writing) == 0, err
}

// beginRead starts to receive a payload of exactly this length.
func (b *bundle) beginRead(payload []byte) {
	if b.crew == nil {
		b.reading = payload
		return
	}
	b.in.begin(payload)
}

// advanceRead is as advanceWrite.
func (b *bundle) advanceRead() (done bool, err error) {
	if b.crew != nil {
		return b.in.advance()
	}
	for len(b.reading) > 0 && err == nil {
		b.parts[0] = b.reading
		var n int
		if n, err = b.main.read(b.parts[:]); n == 0 {
			break
		}
		b.reading = b.reading[n:]
	}
	b.parts[0] = nil
	return len(b.reading) == 0, err
}

// helpers is what the threads of this end have cost so far.
func (b *bundle) helpers() HelperCounters {
	if b.crew == nil {
		return HelperCounters{}
	}
	return b.crew.counters()
}

// threads is how many helpers there are at this end.
func (b *bundle) threads() int {
	if b.crew == nil {
		return 0
	}
	return len(b.crew.helpers)
}

// descriptors are all that look may name: the main socket's first.
func (b *bundle) descriptors() []int { return b.fds }

// look tells interest, for each of the descriptors, what to wait for at it when
// reading or writing is what can go on. While helpers are at a payload that is its
// end, and nothing at the main socket.
func (b *bundle) look(read, write bool, interest func(fd int, read, write bool)) {
	if b.crew == nil {
		interest(b.fds[0], read, write)
		return
	}
	out, in := write && b.out.open, read && b.in.open
	interest(b.fds[0], read && !in, write && !out)
	interest(b.out.event, out, false)
	interest(b.in.event, in, false)
}

// finish has the other end find the end of the stream behind what was written.
func (b *bundle) finish() { _ = unix.Shutdown(b.main.descriptor(), unix.SHUT_WR) }

// halt ends the helpers: nothing touches a payload afterwards.
func (b *bundle) halt() {
	if b.crew != nil {
		b.crew.close()
	}
}

// close ends the connection. Nothing touches a payload afterwards. The descriptors
// are free for others then: pollers must have forgotten them.
func (b *bundle) close() error {
	b.closing.Do(func() {
		errs := []error{}
		b.halt()
		if b.crew != nil {
			for _, s := range b.crew.sockets {
				errs = append(errs, s.close())
			}
			errs = append(errs, os.NewSyscallError("close", unix.Close(b.out.event)), os.NewSyscallError("close", unix.Close(b.in.event)))
		}
		b.closeErr = errors.Join(append(errs, b.main.close())...)
	})
	return b.closeErr
}
