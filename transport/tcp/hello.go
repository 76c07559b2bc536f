package tcp

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"

	"github.com/gollective/gollective/internal/handshake"
	"github.com/gollective/gollective/transport"
)

// A connection starts as package handshake says. What the dialler says about itself
// is which sockets belong together, in which place this one is, and what they are
// for: the communicator, by a hash of its name, and the link. All integers are
// big-endian.

const (
	magic           = "GOLLDATA"
	protocolVersion = 2
	helloBytes      = sha256.Size + 18 + 16 + 3

	// mostSockets is how many sockets may carry payloads (MAX_SOCKETS in
	// src/transport/net_socket.cc).
	mostSockets = 64
	// mostThreads is how many threads may serve them (MAX_THREADS there).
	mostThreads = 16
	// mostNumber bounds ranks, channels and slots: a slot's bytes are counted in
	// an int everywhere.
	mostNumber = 1<<31 - 1
)

type communicatorID [sha256.Size]byte

func identify(communicator string) communicatorID { return sha256.Sum256([]byte(communicator)) }

// hello is what one socket says.
type hello struct {
	communicator communicatorID
	link         transport.Link
	bundle       [16]byte // random: the sockets of one connection have the same
	place        uint8    // among the data sockets; the main socket comes after them
	sockets      uint8    // that carry payloads
	threads      uint8    // that serve them at each end
}

func (h *hello) encode() []byte {
	b := make([]byte, 0, helloBytes)
	b = append(b, h.communicator[:]...)
	for _, n := range []int{h.link.From, h.link.To, h.link.Channel, h.link.Slot} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, uint8(h.link.Use), h.link.Lane)
	b = append(b, h.bundle[:]...)
	return append(b, h.place, h.sockets, h.threads)
}

// decodeHello is for bodies of any content; ok says whether a dialler would send it.
func decodeHello(b []byte) (h hello, ok bool) {
	if len(b) != helloBytes {
		return hello{}, false
	}
	b = b[copy(h.communicator[:], b):]
	ok = true
	for _, n := range []*int{&h.link.From, &h.link.To, &h.link.Channel, &h.link.Slot} {
		v := binary.BigEndian.Uint32(b)
		ok = ok && v <= mostNumber
		*n, b = int(v&mostNumber), b[4:]
	}
	h.link.Use, h.link.Lane = transport.Use(b[0]), b[1]
	b = b[2:]
	b = b[copy(h.bundle[:], b):]
	h.place, h.sockets, h.threads = b[0], b[1], b[2]
	ok = ok && h.link.Use <= transport.PointToPoint && h.place <= h.sockets &&
		h.sockets <= mostSockets && h.threads <= mostThreads && h.threads <= h.sockets && (h.threads > 0) == (h.sockets > 0)
	return h, ok
}

// terms are those of a job's data connections.
func terms(secret []byte, secure *tls.Config) (handshake.Terms, error) {
	keys, err := hkdf.Key(sha256.New, secret, nil, "gollective data connections", 8+32)
	if err != nil {
		return handshake.Terms{}, fmt.Errorf("tcp: %w", err)
	}
	return handshake.Terms{
		Magic: magic, Version: protocolVersion, Body: helloBytes,
		Job: binary.BigEndian.Uint64(keys), Secret: keys[8:],
		Sensible: func(body []byte) bool { _, ok := decodeHello(body); return ok },
		TLS:      secure,
	}, nil
}
