package tcp

// bundle is one connection between two processes: a main socket, and perhaps more
// that carry large payloads. One goroutine at a time uses it.
type bundle struct {
	main stream
}

// newBundle takes over streams: the data sockets, and the main socket at the end.
func newBundle(streams []stream, threads int) (*bundle, error) {
	return &bundle{main: streams[len(streams)-1]}, nil
}

// stripes reports whether payloads above those that go with their head are to be
// sent with beginWrite and received with beginRead, over the data sockets.
func (b *bundle) stripes() bool { return false }

// beginWrite starts to send a payload, which must stay as it is until advanceWrite
// is done or close has returned. One at a time is under way.
func (b *bundle) beginWrite(payload []byte) {}

// advanceWrite moves the payload on, without waiting; done says that all of it has
// been handed to the system.
func (b *bundle) advanceWrite() (done bool, err error) { return true, nil }

// beginRead starts to receive a payload of exactly this length.
func (b *bundle) beginRead(payload []byte) {}

// advanceRead is as advanceWrite.
func (b *bundle) advanceRead() (done bool, err error) { return true, nil }

// helpers is what the threads of this end have cost so far.
func (b *bundle) helpers() HelperCounters { return HelperCounters{} }

// descriptors are those to look at when waiting for the other end: the main
// socket's first.
func (b *bundle) descriptors() []int { return []int{b.main.descriptor()} }

// close ends the connection. Nothing touches a payload afterwards.
func (b *bundle) close() error { return b.main.close() }
