// Package handshake is how two processes of a job meet on a connection, whoever
// else may reach the port:
//
//  1. the dialler sends a hello: magic, version, flags, what it says about itself
//     and whom it wants, the job's number, a nonce;
//  2. the listener sends an answer: magic, version, a verdict, its own nonce, and
//     a MAC of both messages under the job's secret;
//  3. the dialler checks it and sends a MAC of the same bytes with another label;
//  4. with TLS, both go on encrypted.
//
// Both have proved the secret then, freshly, and neither proof can be replayed
// or turned round. Without TLS nothing is encrypted: the network is trusted not to
// change an established connection, as NCCL trusts it, but not to be free of
// strangers.
package handshake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrVersion: the other side speaks another version of this protocol.
	ErrVersion = errors.New("protocol versions differ")
	// ErrStranger: whatever answered can't prove that it belongs to the job.
	ErrStranger = errors.New("not a member of this job")
	// ErrTLS: one side of a connection is told to encrypt it and the other is not, or
	// they can't agree how.
	ErrTLS = errors.New("no agreement on TLS")
)

// Terms are one protocol of one job: what both sides know before they meet.
type Terms struct {
	Magic   string // MagicBytes long
	Version uint16
	Body    int    // bytes of what a dialler says about itself
	Job     uint64 // tells jobs apart; anybody may know it
	Secret  []byte
	// Sensible reports whether a body is one of this version. nil accepts all.
	Sensible func(body []byte) bool
	// Refusals says what the protocol's own verdicts mean, from OwnVerdict on.
	Refusals []string
	// TLS encrypts what follows, if it is not nil.
	TLS *tls.Config
}

const (
	// MagicBytes is the length of a magic.
	MagicBytes = 8
	// NonceBytes is the length of a nonce.
	NonceBytes = 32
	// MACBytes is the length of a proof.
	MACBytes = sha256.Size
	// AnswerBytes is the length of an answer.
	AnswerBytes = MagicBytes + 4 + NonceBytes + MACBytes

	headBytes = MagicBytes + 3
	tailBytes = 8 + NonceBytes

	flagTLS = 1
)

// HelloBytes is the length of a hello.
func (t *Terms) HelloBytes() int { return headBytes + t.Body + tailBytes }

// Verdict is what the listener makes of a hello.
type Verdict uint8

// Verdicts of every protocol. Those that are not proven are sent to whoever asks.
const (
	Welcome      Verdict = 1 + iota
	WrongVersion         // not proven
	WrongJob             // not proven
	WrongTLS
	OwnVerdict // the first of the protocol's own
)

// Text completes a sentence that begins with "it".
func (t *Terms) Text(v Verdict) string {
	switch v {
	case Welcome:
		return "welcome"
	case WrongVersion:
		return "speaks another protocol version"
	case WrongJob:
		return "serves another job"
	case WrongTLS:
		if t.TLS == nil {
			return "wants TLS, which is off here"
		}
		return "has TLS off, which this process wants"
	}
	if own := int(v) - int(OwnVerdict); own >= 0 && own < len(t.Refusals) {
		return t.Refusals[own]
	}
	return fmt.Sprintf("gave the unknown verdict %d", uint8(v))
}

// Hello is the hello with this body.
func (t *Terms) Hello(body []byte, nonce *[NonceBytes]byte) []byte {
	b := make([]byte, 0, t.HelloBytes())
	b = append(b, t.Magic...)
	b = binary.BigEndian.AppendUint16(b, t.Version)
	b = append(b, t.flags())
	b = append(b, body...)
	b = binary.BigEndian.AppendUint64(b, t.Job)
	return append(b, nonce[:]...)
}

func (t *Terms) flags() byte {
	if t.TLS != nil {
		return flagTLS
	}
	return 0
}

// heard is a hello that has been read.
type heard struct {
	version uint16
	flags   byte
	body    []byte
	job     uint64
}

// decode reads a hello of any version as far as versions agree: magic and
// version come first and will stay there.
func (t *Terms) decode(b []byte) (h heard, ok bool) {
	if len(b) != t.HelloBytes() || string(b[:MagicBytes]) != t.Magic {
		return heard{}, false
	}
	h.version = binary.BigEndian.Uint16(b[MagicBytes:])
	h.flags = b[MagicBytes+2]
	h.body = b[headBytes : headBytes+t.Body]
	h.job = binary.BigEndian.Uint64(b[headBytes+t.Body:])
	if h.version == t.Version && (h.flags&^flagTLS != 0 || t.Sensible != nil && !t.Sensible(h.body)) {
		return heard{}, false
	}
	return h, true
}

// answer is all of an answer but its MAC.
func (t *Terms) answer(v Verdict, nonce *[NonceBytes]byte) []byte {
	b := make([]byte, 0, AnswerBytes)
	b = append(b, t.Magic...)
	b = binary.BigEndian.AppendUint16(b, t.Version)
	b = append(b, uint8(v), 0)
	return append(b, nonce[:]...)
}

func (t *Terms) decodeAnswer(b []byte) (v Verdict, version uint16, ok bool) {
	if len(b) != AnswerBytes || string(b[:MagicBytes]) != t.Magic {
		return 0, 0, false
	}
	version = binary.BigEndian.Uint16(b[MagicBytes:])
	v = Verdict(b[MagicBytes+2])
	if v == 0 || int(v) >= int(OwnVerdict)+len(t.Refusals) || b[MagicBytes+3] != 0 {
		return 0, 0, false
	}
	return v, version, true
}

func (t *Terms) proof(label string, messages ...[]byte) []byte {
	m := hmac.New(sha256.New, t.Secret)
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

// Greet is the dialler's side. A verdict other than Welcome comes with an error
// that says what it means; an error without a verdict is the connection's, or
// ErrStranger.
func (t *Terms) Greet(conn io.ReadWriter, body []byte) (Verdict, error) {
	var nonce [NonceBytes]byte
	rand.Read(nonce[:]) // never fails: it ends the process when there is no entropy
	mine := t.Hello(body, &nonce)
	if _, err := conn.Write(mine); err != nil {
		return 0, err
	}
	theirs := make([]byte, AnswerBytes)
	if _, err := io.ReadFull(conn, theirs[:MagicBytes]); err != nil {
		return 0, err
	}
	if string(theirs[:MagicBytes]) != t.Magic {
		return 0, fmt.Errorf("%w: it doesn't speak this protocol", ErrStranger)
	}
	if _, err := io.ReadFull(conn, theirs[MagicBytes:]); err != nil {
		return 0, err
	}
	v, version, ok := t.decodeAnswer(theirs)
	if !ok {
		return 0, fmt.Errorf("%w: it doesn't speak this protocol", ErrStranger)
	}
	switch {
	case v == WrongVersion || version != t.Version:
		return WrongVersion, fmt.Errorf("%w: it speaks version %d, this process version %d", ErrVersion, version, t.Version)
	case v == WrongJob:
		return v, fmt.Errorf("%w: it %s", ErrStranger, t.Text(v))
	}
	unproven := AnswerBytes - MACBytes
	if !hmac.Equal(theirs[unproven:], t.proof(listenerLabel, mine, theirs[:unproven])) {
		return 0, fmt.Errorf("%w: it doesn't know the job's secret", ErrStranger)
	}
	switch v {
	case Welcome:
		_, err := conn.Write(t.proof(diallerLabel, mine, theirs))
		return Welcome, err
	case WrongTLS:
		return v, fmt.Errorf("%w: it %s", ErrTLS, t.Text(v))
	}
	return v, fmt.Errorf("%w: it %s", ErrStranger, t.Text(v))
}

// Receive is the listener's first half: the hello of somebody who at least knows
// the job. It answers the others what they can be told, and an error.
func (t *Terms) Receive(conn io.ReadWriter) (body, raw []byte, err error) {
	raw = make([]byte, t.HelloBytes())
	// The magic alone first: a stranger with little to say is dropped at once.
	if _, err := io.ReadFull(conn, raw[:MagicBytes]); err != nil {
		return nil, nil, err
	}
	if string(raw[:MagicBytes]) != t.Magic {
		return nil, nil, fmt.Errorf("%w: it sent %q", ErrStranger, raw[:MagicBytes])
	}
	if _, err := io.ReadFull(conn, raw[MagicBytes:]); err != nil {
		return nil, nil, err
	}
	h, ok := t.decode(raw)
	if !ok {
		return nil, nil, fmt.Errorf("%w: its hello makes no sense", ErrStranger)
	}
	refuse := WrongVersion
	if h.version == t.Version {
		if h.job == t.Job {
			return h.body, raw, nil
		}
		refuse = WrongJob
	}
	// No proof: who doesn't know the job is given nothing made with its secret.
	answer := t.answer(refuse, new([NonceBytes]byte))
	if _, err := conn.Write(append(answer, make([]byte, MACBytes)...)); err != nil {
		return nil, nil, err
	}
	if refuse == WrongVersion {
		return nil, nil, fmt.Errorf("%w: it speaks version %d", ErrVersion, h.version)
	}
	return nil, nil, fmt.Errorf("%w: it belongs to another job", ErrStranger)
}

// Answer is the listener's second half: the proofs, and what the listener makes of
// the hello. Only after Welcome, and no error, is the connection of any use.
func (t *Terms) Answer(conn io.ReadWriter, raw []byte, v Verdict) error {
	if raw[MagicBytes+2]&flagTLS != t.flags() {
		v = WrongTLS
	}
	var nonce [NonceBytes]byte
	rand.Read(nonce[:])
	answer := t.answer(v, &nonce)
	answer = append(answer, t.proof(listenerLabel, raw, answer)...)
	if _, err := conn.Write(answer); err != nil {
		return err
	}
	if v == WrongTLS {
		return fmt.Errorf("%w: it %s", ErrTLS, t.Text(v))
	}
	if v != Welcome {
		return nil
	}
	theirs := make([]byte, MACBytes)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return err
	}
	if !hmac.Equal(theirs, t.proof(diallerLabel, raw, answer)) {
		return fmt.Errorf("%w: it doesn't know the job's secret", ErrStranger)
	}
	return nil
}
