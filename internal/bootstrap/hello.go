package bootstrap

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/gollective/gollective/internal/handshake"
)

// Every connection starts the same way, whoever dialled: package handshake says
// how. What a dialler says about itself is a hello.

const (
	magic           = "GOLLBOOT"
	protocolVersion = 2
	helloBody       = 13
)

type role uint8

const (
	roleCheckIn role = 1 + iota // to the root: I'm here
	roleReport                  // to the root: something went wrong
	roleLink                    // to a member: let us be neighbours
	lastRole    = roleLink
)

type hello struct {
	role role
	from uint32
	to   uint32 // the rank wanted; toRoot for the root
	size uint32
}

const toRoot = ^uint32(0)

type verdict = handshake.Verdict

const (
	welcome      = handshake.Welcome
	wrongProcess = handshake.OwnVerdict     // the process asked for isn't here
	declaredLost = handshake.OwnVerdict + 1 // the dialler has been declared lost
)

// terms are those of the job. Its connections are encrypted if secure is not nil.
func (id *ID) terms(secure *tls.Config) handshake.Terms {
	return handshake.Terms{
		Magic: magic, Version: protocolVersion, Body: helloBody, Job: id.job, Secret: id.secret[:],
		Sensible: func(body []byte) bool { h := decodeHello(body); return h.role > 0 && h.role <= lastRole },
		Refusals: []string{"is another process of this job", "counts this process as lost"},
		TLS:      secure,
	}
}

func (h hello) encode() []byte {
	b := make([]byte, 0, helloBody)
	b = append(b, uint8(h.role))
	b = binary.BigEndian.AppendUint32(b, h.from)
	b = binary.BigEndian.AppendUint32(b, h.to)
	return binary.BigEndian.AppendUint32(b, h.size)
}

// decodeHello reads helloBody bytes.
func decodeHello(b []byte) hello {
	s := scanner{rest: b}
	return hello{role: role(s.u8()), from: s.u32(), to: s.u32(), size: s.u32()}
}

// greet is the dialler's side. It returns the connection as it is to be used from
// then on.
func greet(conn net.Conn, t handshake.Terms, h hello) (net.Conn, verdict, error) {
	over := t.Over(conn)
	v, err := over.Greet(conn, h.encode())
	if err == nil {
		conn, err = over.Secure(conn, true)
	}
	return conn, v, err
}

// newGate lets through those that judge welcomes, to enter.
func newGate(t handshake.Terms, log *slog.Logger, judge func(hello) verdict, enter func(net.Conn, hello)) *handshake.Gate {
	return handshake.NewGate(handshake.GateConfig{
		Name: "bootstrap", Log: log, Terms: t, Prepare: prepare,
		Judge: func(body []byte) verdict { return judge(decodeHello(body)) },
		Enter: func(conn net.Conn, body []byte) { enter(conn, decodeHello(body)) },
	})
}

// Records between the root and the others: a length, a kind, a body.
type recordKind uint8

const (
	recordCheckIn recordKind = 1 + iota // member
	recordNoted                         // empty: the root has the check-in
	recordNext                          // member: where rank+1 listens
	recordFailed                        // Error: the job can't start
	recordReport                        // Error
	recordJoined                        // empty: this rank has joined
	lastRecord    = recordJoined
)

// recordLimit holds the longest record, an error that names every second rank.
func recordLimit(size int) int { return 8<<10 + (size+7)/8 }

func writeRecord(w io.Writer, kind recordKind, body []byte) error {
	b := make([]byte, 0, 5+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, uint8(kind))
	b = append(b, body...)
	_, err := w.Write(b)
	return err
}

func readRecord(r io.Reader, limit int) (recordKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	kind := recordKind(head[4])
	if kind == 0 || kind > lastRecord || int64(n) > int64(limit) {
		return 0, nil, fmt.Errorf("%w: record of kind %d with %d bytes", ErrStranger, kind, n)
	}
	body := make([]byte, n)
	_, err := io.ReadFull(r, body)
	return kind, body, noEOF(err)
}

// noEOF marks an end in the middle of something as one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
