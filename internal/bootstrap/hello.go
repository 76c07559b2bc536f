package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// Every connection starts the same way, whoever dialled:
//
//  1. the dialler sends a hello: magic, version, who it is, whom it wants, a nonce;
//  2. the listener sends an answer: magic, version, a verdict, its own nonce, and
//     a MAC of both messages under the job's secret;
//  3. the dialler checks it and sends a MAC of the same bytes with another label.
//
// Both have proved the secret then, freshly, and neither proof can be replayed
// or turned round. Nothing is encrypted: the network is trusted not to change
// an established connection, as NCCL trusts it, but not to be free of strangers.

const (
	magic           = "GOLLBOOT"
	protocolVersion = 1
	nonceBytes      = 32
	macBytes        = sha256.Size
	helloBytes      = len(magic) + 4 + 12 + 8 + nonceBytes
	answerBytes     = len(magic) + 4 + nonceBytes + macBytes
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
	job  uint64
}

const toRoot = ^uint32(0)

type verdict uint8

const (
	welcome      verdict = 1 + iota
	wrongVersion         // not proven: sent to whoever asks
	wrongJob             // not proven
	wrongProcess         // the process asked for isn't here
	declaredLost         // the dialler has been declared lost
	lastVerdict  = declaredLost
)

func (v verdict) String() string {
	switch v {
	case welcome:
		return "welcome"
	case wrongVersion:
		return "speaks another protocol version"
	case wrongJob:
		return "serves another job"
	case wrongProcess:
		return "is another process of this job"
	case declaredLost:
		return "counts this process as lost"
	}
	return fmt.Sprintf("gave the unknown verdict %d", uint8(v))
}

func (h hello) encode(nonce *[nonceBytes]byte) []byte {
	b := make([]byte, 0, helloBytes)
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, protocolVersion)
	b = append(b, uint8(h.role), 0)
	b = binary.BigEndian.AppendUint32(b, h.from)
	b = binary.BigEndian.AppendUint32(b, h.to)
	b = binary.BigEndian.AppendUint32(b, h.size)
	b = binary.BigEndian.AppendUint64(b, h.job)
	return append(b, nonce[:]...)
}

// decodeHello reads a hello of any version as far as versions agree: magic and
// version come first and will stay there.
func decodeHello(b []byte) (h hello, version uint16, ok bool) {
	if len(b) != helloBytes || string(b[:len(magic)]) != magic {
		return hello{}, 0, false
	}
	s := scanner{rest: b[len(magic):]}
	version = binary.BigEndian.Uint16(s.take(2))
	h.role = role(s.u8())
	reserved := s.u8()
	h.from, h.to, h.size, h.job = s.u32(), s.u32(), s.u32(), s.u64()
	if version == protocolVersion && (h.role == 0 || h.role > lastRole || reserved != 0) {
		return hello{}, 0, false
	}
	return h, version, true
}

func encodeAnswer(v verdict, nonce *[nonceBytes]byte) []byte {
	b := make([]byte, 0, answerBytes)
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, protocolVersion)
	b = append(b, uint8(v), 0)
	return append(b, nonce[:]...)
}

func decodeAnswer(b []byte) (v verdict, version uint16, ok bool) {
	if len(b) != answerBytes || string(b[:len(magic)]) != magic {
		return 0, 0, false
	}
	version = binary.BigEndian.Uint16(b[len(magic):])
	v = verdict(b[len(magic)+2])
	if v == 0 || v > lastVerdict || b[len(magic)+3] != 0 {
		return 0, 0, false
	}
	return v, version, true
}

func proof(secret *[secretBytes]byte, label string, messages ...[]byte) []byte {
	m := hmac.New(sha256.New, secret[:])
	m.Write([]byte(label))
	for _, b := range messages {
		m.Write(b)
	}
	return m.Sum(nil)
}

const (
	listenerLabel = "gollective listener\x00"
	diallerLabel  = "gollective dialler\x00"
)

// greet is the dialler's side. A verdict other than welcome comes with an error
// that says what it means; an error without a verdict is the connection's, or
// ErrStranger.
func greet(conn io.ReadWriter, id *ID, h hello) (verdict, error) {
	h.job = id.job
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	mine := h.encode(&nonce)
	if _, err := conn.Write(mine); err != nil {
		return 0, err
	}
	theirs := make([]byte, answerBytes)
	if _, err := io.ReadFull(conn, theirs[:len(magic)]); err != nil {
		return 0, err
	}
	if string(theirs[:len(magic)]) != magic {
		return 0, fmt.Errorf("%w: it doesn't speak this protocol", ErrStranger)
	}
	if _, err := io.ReadFull(conn, theirs[len(magic):]); err != nil {
		return 0, err
	}
	v, version, ok := decodeAnswer(theirs)
	if !ok {
		return 0, fmt.Errorf("%w: it doesn't speak this protocol", ErrStranger)
	}
	switch {
	case v == wrongVersion || version != protocolVersion:
		return wrongVersion, fmt.Errorf("%w: it speaks version %d, this process version %d", ErrVersion, version, protocolVersion)
	case v == wrongJob:
		return v, fmt.Errorf("%w: it %s", ErrStranger, v)
	}
	body := answerBytes - macBytes
	if !hmac.Equal(theirs[body:], proof(&id.secret, listenerLabel, mine, theirs[:body])) {
		return 0, fmt.Errorf("%w: it doesn't know the job's secret", ErrStranger)
	}
	if v != welcome {
		return v, fmt.Errorf("%w: it %s", ErrStranger, v)
	}
	_, err := conn.Write(proof(&id.secret, diallerLabel, mine, theirs))
	return welcome, err
}

// receiveHello is the listener's first half: the hello of somebody who at least
// knows the job. It answers the others what they can be told, and an error.
func receiveHello(conn io.ReadWriter, id *ID) (h hello, raw []byte, err error) {
	raw = make([]byte, helloBytes)
	// The magic alone first: a stranger with little to say is dropped at once.
	if _, err := io.ReadFull(conn, raw[:len(magic)]); err != nil {
		return h, nil, err
	}
	if string(raw[:len(magic)]) != magic {
		return h, nil, fmt.Errorf("%w: it sent %q", ErrStranger, raw[:len(magic)])
	}
	if _, err := io.ReadFull(conn, raw[len(magic):]); err != nil {
		return h, nil, err
	}
	h, version, ok := decodeHello(raw)
	if !ok {
		return h, nil, fmt.Errorf("%w: its hello makes no sense", ErrStranger)
	}
	refuse := wrongVersion
	if version == protocolVersion {
		if h.job == id.job {
			return h, raw, nil
		}
		refuse = wrongJob
	}
	// No proof: who doesn't know the job is given nothing made with its secret.
	answer := encodeAnswer(refuse, new([nonceBytes]byte))
	if _, err := conn.Write(append(answer, make([]byte, macBytes)...)); err != nil {
		return h, nil, err
	}
	if refuse == wrongVersion {
		return h, nil, fmt.Errorf("%w: it speaks version %d", ErrVersion, version)
	}
	return h, nil, fmt.Errorf("%w: it belongs to another job", ErrStranger)
}

// answerHello is the listener's second half: the proofs. After an error, or any
// verdict but welcome, the connection is of no more use.
func answerHello(conn io.ReadWriter, id *ID, raw []byte, v verdict) error {
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	answer := encodeAnswer(v, &nonce)
	answer = append(answer, proof(&id.secret, listenerLabel, raw, answer)...)
	if _, err := conn.Write(answer); err != nil || v != welcome {
		return err
	}
	theirs := make([]byte, macBytes)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return err
	}
	if !hmac.Equal(theirs, proof(&id.secret, diallerLabel, raw, answer)) {
		return fmt.Errorf("%w: it doesn't know the job's secret", ErrStranger)
	}
	return nil
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

// addrText is how messages name the far end of a connection.
func addrText(conn net.Conn) string {
	a := conn.RemoteAddr()
	if a == nil {
		return "unknown"
	}
	if a.Network() == "unix" {
		if a.String() == "" || a.String() == "@" || bytes.Equal([]byte(a.String()), []byte{0}) {
			return "unix"
		}
		return "unix:" + a.String()
	}
	return a.String()
}
