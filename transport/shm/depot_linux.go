package shm

import (
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
//	depot  → client  status, 1 byte; size or length of an error text, 8 bytes;
//	                 the segment's descriptor (SCM_RIGHTS) or the text
const (
	nonceBytes    = 16
	mostName      = 256
	mostErrorText = 4096
	statusGiven   = 1
	statusRefused = 2
)

// exchangeTimeout bounds one exchange: the peer's depot answers without asking
// anybody, so only a stopped process takes longer, or a stranger who dawdles.
const exchangeTimeout = 10 * time.Second

// Depot is a process's store of segments.
type Depot struct {
	secret   []byte
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu       sync.Mutex
	segments map[string]*segment // made here
	fetched  map[string]*segment // by "address name"
	provider Provider
	conns    map[net.Conn]struct{}
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
		conns:    make(map[net.Conn]struct{}),
	}
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
	s, err := fetch(ctx, address, secret, name)
	if err != nil {
		return nil, fmt.Errorf("shm: segment %s of %s: %w", name, address, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
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
	for c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
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
		if d.closed || len(d.conns) >= 256 {
			d.mu.Unlock()
			conn.Close()
			continue
		}
		d.conns[conn] = struct{}{}
		d.mu.Unlock()
		d.serving.Add(1)
		go func() {
			defer d.serving.Done()
			_ = conn.SetDeadline(time.Now().Add(exchangeTimeout))
			_ = d.serve(conn) // whoever is at the other end, it changes nothing here
			d.mu.Lock()
			delete(d.conns, conn)
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
	s, err := d.lookUp(name)
	if err != nil {
		text := err.Error()
		if errors.Is(err, ErrUnknown) {
			text = ""
		}
		text = text[:min(len(text), mostErrorText)]
		reply := binary.LittleEndian.AppendUint64([]byte{statusRefused}, uint64(len(text)))
		_, err = conn.Write(append(reply, text...))
		return err
	}
	reply := binary.LittleEndian.AppendUint64([]byte{statusGiven}, uint64(len(s.memory)))
	_, _, err = conn.WriteMsgUnix(reply, unix.UnixRights(s.fd), nil)
	return err
}

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

func (d *Depot) lookUp(name string) (*segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.segments[name]; ok {
		return s, nil
	}
	if d.provider == nil {
		return nil, ErrUnknown
	}
	size, prepare, err := d.provider(name)
	if err != nil {
		return nil, err
	}
	return d.create(name, size, prepare)
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
	case reply[0] == statusRefused && size == 0:
		return fail(ErrUnknown)
	case reply[0] == statusRefused && size <= mostErrorText:
		text := make([]byte, size)
		if _, err := io.ReadFull(conn, text); err != nil {
			return fail(err)
		}
		return fail(fmt.Errorf("refused: %s", text))
	case reply[0] != statusGiven || len(fds) != 1 || size == 0 || size > mostSegment:
		return fail(errors.New("not an answer"))
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
