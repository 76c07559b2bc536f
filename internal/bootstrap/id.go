package bootstrap

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
)

const (
	idPrefix = "gollective1"
	// localAddr stands for the root's abstract unix socket. Its name follows
	// from the job, so it needs no text of its own.
	localAddr   = "unix"
	maxIDBytes  = 1024
	maxIDAddrs  = 8
	secretBytes = 32
)

// ID is all that a process needs to find its job and to be let in: where the
// root listens, a random job number, and a secret. Whoever has it can join.
//
// NCCL: ncclUniqueId (src/bootstrap.cc), which has an address and a number but
// no secret.
type ID struct {
	addrs  []string // localAddr, or host:port; the first is the best
	job    uint64
	secret [secretBytes]byte
}

func newID(addrs []string) ID {
	id := ID{addrs: addrs}
	var job [8]byte
	// crypto/rand.Read never fails: it ends the process when it has no entropy.
	rand.Read(job[:])
	rand.Read(id.secret[:])
	id.job = binary.BigEndian.Uint64(job[:])
	return id
}

// MakeID is the id of a job whose processes can't be handed one: each makes it
// from what all of them have been told, an address for the root and a seed.
// The seed should be unguessable, a launcher's random run id for example, and
// new for every run; whoever knows it can join. addrs are host:port with a port
// that isn't 0, where host may be a name, or "unix" for a job of one host.
func MakeID(seed []byte, addrs ...string) (ID, error) {
	if len(seed) == 0 {
		return ID{}, fmt.Errorf("bootstrap: make an id: %w: the seed is empty", ErrConfig)
	}
	if err := checkAddrs(addrs); err != nil {
		return ID{}, fmt.Errorf("bootstrap: make an id: %w: %w", ErrConfig, err)
	}
	id := ID{addrs: append([]string(nil), addrs...)}
	job := sha256.Sum256(append([]byte("gollective job\x00"), seed...))
	id.job = binary.BigEndian.Uint64(job[:])
	id.secret = sha256.Sum256(append([]byte("gollective secret\x00"), seed...))
	if n := len(id.String()); n > maxIDBytes {
		return ID{}, fmt.Errorf("bootstrap: make an id: %w: %d bytes of text, at most %d", ErrConfig, n, maxIDBytes)
	}
	return id, nil
}

// IsZero reports whether the id is the zero value, which no job has.
func (id ID) IsZero() bool { return len(id.addrs) == 0 }

// Secret is what the members of the job share: a key for their further connections.
func (id ID) Secret() []byte { return slices.Clone(id.secret[:]) }

// Job is the job's number, for logs: it does not let anybody in.
func (id ID) Job() uint64 { return id.job }

// Addrs are the places where the root listens, for messages.
func (id ID) Addrs() []string {
	out := make([]string, len(id.addrs))
	for i, a := range id.addrs {
		out[i] = a
		if a == localAddr {
			out[i] = "unix:" + rootSocket(id.job)
		}
	}
	return out
}

// String is the text form, printable and without blanks; it contains the
// secret. The ids of [Listen] take at most 300 bytes.
func (id ID) String() string {
	if id.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s.%016x.%s.%s", idPrefix, id.job,
		base64.RawURLEncoding.EncodeToString(id.secret[:]), strings.Join(id.addrs, ","))
}

// LogValue keeps the secret out of structured logs.
func (id ID) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("job %016x at %s", id.job, strings.Join(id.Addrs(), ", ")))
}

// ParseID reads what String wrote. Its errors don't repeat the text, which may
// hold a secret.
func ParseID(text string) (ID, error) {
	id, err := parseID(text)
	if err != nil {
		return ID{}, fmt.Errorf("bootstrap: parse an id: %w: %w", ErrConfig, err)
	}
	return id, nil
}

func parseID(text string) (ID, error) {
	if len(text) > maxIDBytes {
		return ID{}, fmt.Errorf("%d bytes of text, at most %d", len(text), maxIDBytes)
	}
	parts := strings.SplitN(text, ".", 4)
	if len(parts) != 4 {
		return ID{}, fmt.Errorf("%d of 4 fields", len(parts))
	}
	if parts[0] != idPrefix {
		return ID{}, fmt.Errorf("it doesn't start with %q", idPrefix)
	}
	job, err := strconv.ParseUint(parts[1], 16, 64)
	if err != nil || len(parts[1]) != 16 || parts[1] != strings.ToLower(parts[1]) {
		return ID{}, errors.New("the job is not 16 hexadecimal digits")
	}
	secret, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(secret) != secretBytes {
		return ID{}, fmt.Errorf("the secret is not %d bytes of base64", secretBytes)
	}
	id := ID{job: job, addrs: strings.Split(parts[3], ",")}
	copy(id.secret[:], secret)
	return id, checkAddrs(id.addrs)
}

func checkAddrs(addrs []string) error {
	if len(addrs) == 0 || len(addrs) > maxIDAddrs {
		return fmt.Errorf("%d addresses, want 1 to %d", len(addrs), maxIDAddrs)
	}
	for _, a := range addrs {
		if a == localAddr {
			continue
		}
		if err := checkHostPort(a); err != nil {
			return err
		}
	}
	return nil
}

// checkHostPort accepts host:port with a port that can be dialled and a host of
// the letters that names and addresses are made of.
func checkHostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("address %q: want host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("address %q: want a port from 1 to 65535", addr)
	}
	if host == "" || len(host) > 255 {
		return fmt.Errorf("address %q: the host has %d letters", addr, len(host))
	}
	for _, c := range []byte(host) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '-', c == ':', c == '_', c == '%':
		default:
			return fmt.Errorf("address %q: a host has no %q", addr, c)
		}
	}
	return nil
}

func rootSocket(job uint64) string { return fmt.Sprintf("@gollective-%016x-root", job) }

func memberSocket(job uint64, rank int, incarnation uint64) string {
	return fmt.Sprintf("@gollective-%016x-%d-%016x", job, rank, incarnation)
}
