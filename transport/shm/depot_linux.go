package shm

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The exchange on a depot's socket, all integers little-endian:
//
//	depot  → client  nonce, 16 bytes
//	client → depot   length of the name, 2 bytes; name; HMAC-SHA256(secret, nonce ‖ name)
//	depot  → client  status, 1 byte; size or length of a text, 8 bytes; the
//	                 segment's descriptor (SCM_RIGHTS) or the text
const (
	nonceBytes    = 16
	mostName      = 256
	mostErrorText = 4096
	statusGiven   = 1
	statusRefused = 2
	statusNoSpace = 3 // the text is what is needed and what is free, 8 bytes each
)

// mostExchanges bounds the exchanges under way at a depot. Whoever comes beyond it
// takes the place of the oldest: a peer needs a moment, a stranger may dawdle.
const mostExchanges = 256

// exchangeTimeout bounds one exchange: the peer's depot answers without asking
// anybody, so only a stopped process takes longer, or a stranger who dawdles.
const exchangeTimeout = 10 * time.Second

// Depot is a process's store of segments.
type Depot struct {
	secret   []byte
	listener *net.UnixListener
	serving  sync.WaitGroup

	// ctx ends with the Depot, and with it what is being fetched.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	segments map[string]*segment // made here
	fetched  map[string]*segment // by "address name"
	provider Provider
	conns    *list.List // of net.Conn, the oldest first
	closed   bool
}

// Open starts a Depot, which serves those who know secret.
func Open(secret []byte) (*Depot, error) {
	var tail [12]byte
	if _, err := rand.Read(tail[:]); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	// The leading @ is Linux's abstract namespace: no file, nothing to clean up.
	name := "@gollective-" + hex.EncodeToString(tail[:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	d := &Depot{
		secret:   secret,
		listener: l,
		segments: make(map[string]*segment),
		fetched:  make(map[string]*segment),
		conns:    list.New(),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.serving.Add(1)
	go d.accept()
	return d, nil
}

// Address is where peers reach d; it begins with @.
func (d *Depot) Address() string { return d.listener.Addr().String() }

// Provide sets who makes segments that peers ask for before this process does.
func (d *Depot) Provide(p Provider) {
	d.mu.Lock()
	d.provider = p
	d.mu.Unlock()
}

// Create returns the memory of this process's segment of that name, making it
// zeroed if need be; prepare, which may be nil, is called with new memory before
// any peer sees it. The memory stays mapped until Drop or Close.
func (d *Depot) Create(name string, size int, prepare func([]byte)) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.create(name, size, prepare)
	if err != nil {
		return nil, err
	}
	return s.memory, nil
}

func (d *Depot) create(name string, size int, prepare func([]byte)) (*segment, error) {
	if d.closed {
		return nil, net.ErrClosed
	}
	if s, ok := d.segments[name]; ok {
		if len(s.memory) != size {
			return nil, fmt.Errorf("shm: segment %s has %d bytes, not %d", name, len(s.memory), size)
		}
		return s, nil
	}
	s, err := newSegment(size)
	if err != nil {
		return nil, err
	}
	if prepare != nil {
		prepare(s.memory)
	}
	d.segments[name] = s
	return s, nil
}

// Fetch returns the memory of a segment of the Depot at address, which was opened
// with secret. It fails with ErrUnknown if that has none of the name.
func (d *Depot) Fetch(ctx context.Context, address string, secret []byte, name string) ([]byte, error) {
	key := address + " " + name
	d.mu.Lock()
	s, ok := d.fetched[key]
	closed := d.closed
	d.mu.Unlock()
	if ok {
		return s.memory, nil
	}
	if closed {
		return nil, net.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	s, err := fetch(ctx, address, secret, name)
	if err != nil {
		return nil, fmt.Errorf("shm: segment %s of %s: %w", name, address, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		s.close()
		return nil, net.ErrClosed
	}
	if other, ok := d.fetched[key]; ok { // somebody was faster
		s.close()
		return other.memory, nil
	}
	d.fetched[key] = s
	return s.memory, nil
}

// Drop unmaps the segments, made here or fetched, whose names satisfy match.
// Nobody may touch their memory any more.
func (d *Depot) Drop(match func(name string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.segments {
		if match(name) {
			s.close()
			delete(d.segments, name)
		}
	}
	for key, s := range d.fetched {
		for i := range key {
			if key[i] == ' ' && match(key[i+1:]) {
				s.close()
				delete(d.fetched, key)
				break
			}
		}
	}
}

// Close ends the service and unmaps everything.
func (d *Depot) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	for e := d.conns.Front(); e != nil; e = e.Next() {
		e.Value.(net.Conn).Close()
	}
	d.mu.Unlock()
	d.cancel()
	err := d.listener.Close()
	d.serving.Wait()
	d.Drop(func(string) bool { return true })
	return err
}

// accept serves peers until Close.
func (d *Depot) accept() {
	defer d.serving.Done()
	for {
		conn, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: others will close some
			time.Sleep(10 * time.Millisecond)
			continue
		}
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			conn.Close()
			continue
		}
		if d.conns.Len() >= mostExchanges {
			d.conns.Remove(d.conns.Front()).(net.Conn).Close()
		}
		place := d.conns.PushBack(conn)
		d.mu.Unlock()
		d.serving.Add(1)
		go func() {
			defer d.serving.Done()
			_ = conn.SetDeadline(time.Now().Add(exchangeTimeout))
			_ = d.serve(conn) // whoever is at the other end, it changes nothing here
			d.mu.Lock()
			d.conns.Remove(place) // does nothing when another has its place
			d.mu.Unlock()
			conn.Close()
		}()
	}
}

// serve answers one request.
func (d *Depot) serve(conn *net.UnixConn) error {
	var nonce [nonceBytes]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	if _, err := conn.Write(nonce[:]); err != nil {
		return err
	}
	name, err := readRequest(conn, d.secret, nonce[:])
	if err != nil {
		return err
	}
	fd, size, err := d.lookUp(name)
	if err != nil {
		_, err = conn.Write(refusal(err))
		return err
	}
	defer unix.Close(fd)
	reply := binary.LittleEndian.AppendUint64([]byte{statusGiven}, uint64(size))
	_, _, err = conn.WriteMsgUnix(reply, unix.UnixRights(fd), nil)
	return err
}

// refusal is the reply for an error.
func refusal(err error) []byte {
	status, text := byte(statusRefused), []byte(err.Error())
	var space *SpaceError
	switch {
	case errors.Is(err, ErrUnknown):
		text = nil
	case errors.As(err, &space):
		status = statusNoSpace
		text = binary.LittleEndian.AppendUint64(nil, uint64(space.Need))
		text = binary.LittleEndian.AppendUint64(text, uint64(space.Free))
	}
	text = text[:min(len(text), mostErrorText)]
	return append(binary.LittleEndian.AppendUint64([]byte{status}, uint64(len(text))), text...)
}

// refused is the inverse of refusal.
func refused(status byte, text []byte) error {
	switch {
	case status == statusRefused && len(text) == 0:
		return ErrUnknown
	case status == statusRefused:
		return fmt.Errorf("refused: %s", text)
	case status == statusNoSpace && len(text) == 16:
		return &SpaceError{
			Need: int64(binary.LittleEndian.Uint64(text)), Free: int64(binary.LittleEndian.Uint64(text[8:])),
			Cause: errors.New("said by the process that would own it"),
		}
	}
	return errNoAnswer
}

var errNoAnswer = errors.New("not an answer")

// readRequest returns the name asked for by somebody who knows the secret.
func readRequest(r io.Reader, secret, nonce []byte) (string, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return "", err
	}
	n := int(binary.LittleEndian.Uint16(length[:]))
	if n > mostName {
		return "", fmt.Errorf("shm: a name of %d bytes", n)
	}
	request := make([]byte, n+sha256.Size)
	if _, err := io.ReadFull(r, request); err != nil {
		return "", err
	}
	if !hmac.Equal(request[n:], proof(secret, nonce, request[:n])) {
		return "", errors.New("shm: a request without proof of the secret")
	}
	return string(request[:n]), nil
}

func proof(secret, nonce, name []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(nonce)
	mac.Write(name)
	return mac.Sum(nil)
}

// lookUp returns a descriptor of a segment, which the caller closes: the Depot's
// own may be closed, and its number given to another file, before it is sent.
func (d *Depot) lookUp(name string) (fd, size int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.segments[name]
	if !ok {
		if d.provider == nil {
			return -1, 0, ErrUnknown
		}
		size, prepare, err := d.provider(name)
		if err != nil {
			return -1, 0, err
		}
		if s, err = d.create(name, size, prepare); err != nil {
			return -1, 0, err
		}
	}
	fd, err = unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, len(s.memory), err
}

// fetch asks the depot at address for a segment and maps it.
func fetch(ctx context.Context, address string, secret []byte, name string) (*segment, error) {
	if len(name) > mostName {
		return nil, fmt.Errorf("a name of %d bytes", len(name))
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	conn := c.(*net.UnixConn)
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	var nonce [nonceBytes]byte
	if _, err := io.ReadFull(conn, nonce[:]); err != nil {
		return nil, err
	}
	request := binary.LittleEndian.AppendUint16(nil, uint16(len(name)))
	request = append(request, name...)
	request = append(request, proof(secret, nonce[:], []byte(name))...)
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	return readReply(conn)
}

func readReply(conn *net.UnixConn) (*segment, error) {
	reply, rights := make([]byte, 9), make([]byte, unix.CmsgSpace(4))
	n, rightsLength, _, _, err := conn.ReadMsgUnix(reply, rights)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors(rights[:rightsLength])
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*segment, error) {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	if n < len(reply) {
		if _, err := io.ReadFull(conn, reply[n:]); err != nil {
			return fail(err)
		}
	}
	size := binary.LittleEndian.Uint64(reply[1:])
	switch {
	case reply[0] != statusGiven && size <= mostErrorText:
		text := make([]byte, size)
		if _, err := io.ReadFull(conn, text); err != nil {
			return fail(err)
		}
		return fail(refused(reply[0], text))
	case reply[0] != statusGiven || len(fds) != 1 || size == 0 || size > mostSegment:
		return fail(errNoAnswer)
	}
	s, err := mapSegment(fds[0], int(size))
	unix.Close(fds[0]) // the mapping keeps the memory
	return s, err
}

// descriptors are those that came with a message.
func descriptors(rights []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		some, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range some {
			syscall.CloseOnExec(fd)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}
