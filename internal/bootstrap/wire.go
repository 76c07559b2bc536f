package bootstrap

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Integers on the wire are big-endian. Every decoder here takes bytes that may
// come from anywhere: it allocates no more than a constant times what it was
// given, and says false or an error instead of guessing.

// scanner takes fields off a record; after the first that does not fit, all
// fields are zero and ok is false.
type scanner struct {
	rest []byte
	bad  bool
}

func (s *scanner) take(n int) []byte {
	if s.bad || n < 0 || n > len(s.rest) {
		s.bad = true
		return nil
	}
	out := s.rest[:n:n]
	s.rest = s.rest[n:]
	return out
}

func (s *scanner) u8() uint8 {
	if b := s.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (s *scanner) u32() uint32 {
	if b := s.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (s *scanner) u64() uint64 {
	if b := s.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// bytes takes a field with its length before it.
func (s *scanner) bytes() []byte { return s.take(int(s.u32())) }

// ok reports that every field was there and nothing follows them.
func (s *scanner) ok() bool { return !s.bad && len(s.rest) == 0 }

func appendBytes[T []byte | string](dst []byte, field T) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(field)))
	return append(dst, field...)
}

// member is what processes tell about themselves to be found.
type member struct {
	incarnation uint64 // random, new for each Join: tells a retry from a second claimant
	host        uint64 // equal only on processes that can reach one another's loopback
	pid         uint32
	name        string   // host name, for messages
	addrs       []string // as in ID, without localAddr: @name or host:port
}

const (
	maxMemberAddrs = 8
	maxMemberBytes = 2048
	// MaxDescription is the longest description that Join takes, in bytes.
	MaxDescription = 64 << 10
	// MaxMessage is the longest message that Tell and AllGather take, in bytes.
	MaxMessage = 1 << 20
)

func (m *member) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, m.incarnation)
	dst = binary.BigEndian.AppendUint64(dst, m.host)
	dst = binary.BigEndian.AppendUint32(dst, m.pid)
	dst = appendBytes(dst, m.name)
	dst = append(dst, uint8(len(m.addrs)))
	for _, a := range m.addrs {
		dst = appendBytes(dst, a)
	}
	return dst
}

func (s *scanner) member() member {
	m := member{incarnation: s.u64(), host: s.u64(), pid: s.u32(), name: printable(s.bytes())}
	n := int(s.u8())
	if n == 0 || n > maxMemberAddrs || len(m.name) > 255 {
		s.bad = true
		return member{}
	}
	for range n {
		a := string(s.bytes())
		if len(a) > 0 && a[0] == '@' {
			if len(a) > 100 || printable([]byte(a)) != a {
				s.bad = true
			}
		} else if checkHostPort(a) != nil {
			s.bad = true
		}
		if s.bad {
			return member{}
		}
		m.addrs = append(m.addrs, a)
	}
	return m
}

func (m *member) String() string { return fmt.Sprintf("process %d on %s", m.pid, m.name) }

// addr is the address to name in messages.
func (m *member) addr() string {
	if len(m.addrs) == 0 {
		return ""
	}
	a := m.addrs[0]
	if a[0] == '@' && len(m.addrs) > 1 {
		a = m.addrs[1] // host:port, which says more
	}
	if a[0] == '@' {
		return "unix:" + a
	}
	return a
}

// printable makes text of another process fit to be shown on a terminal.
func printable(text []byte) string {
	out := make([]byte, len(text))
	for i, c := range text {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out[i] = c
	}
	return string(out)
}

// appendError writes what Error says for other processes to read; a cause that
// isn't one of the sentinels becomes text.
func appendError(dst []byte, e *Error, size int) []byte {
	detail := e.Detail
	code := errorCode(e.Err)
	if e.Err != nil && wireErrors[code] != e.Err {
		text := strings.TrimPrefix(e.Err.Error(), wireErrors[code].Error())
		detail = strings.Trim(strings.TrimSpace(text)+": "+detail, ": ")
	}
	if len(detail) > 1024 {
		detail = detail[:1024]
	}
	dst = append(dst, code)
	dst = binary.BigEndian.AppendUint32(dst, uint32(int32(e.Rank)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(int32(e.Reporter)))
	dst = appendBytes(dst, string(e.Phase))
	dst = appendBytes(dst, e.Addr)
	dst = appendBytes(dst, detail)
	bitmap := make([]byte, 0)
	if len(e.Missing) > 0 {
		bitmap = make([]byte, (size+7)/8)
		for _, r := range e.Missing {
			bitmap[r/8] |= 1 << (r % 8)
		}
	}
	return appendBytes(dst, bitmap)
}

func decodeError(body []byte, size int) (*Error, bool) {
	s := scanner{rest: body}
	code := int(s.u8())
	e := &Error{Rank: int(int32(s.u32())), Reporter: int(int32(s.u32()))}
	e.Phase = Phase(printable(s.bytes()))
	e.Addr = printable(s.bytes())
	e.Detail = printable(s.bytes())
	bitmap := s.bytes()
	if !s.ok() || code == 0 || code >= len(wireErrors) || len(bitmap) > (size+7)/8 {
		return nil, false
	}
	if e.Rank < -1 || e.Rank >= size || e.Reporter < -1 || e.Reporter >= size {
		return nil, false
	}
	e.Err = wireErrors[code]
	for r := range min(size, 8*len(bitmap)) {
		if bitmap[r/8]>>(r%8)&1 != 0 {
			e.Missing = append(e.Missing, r)
		}
	}
	return e, true
}
