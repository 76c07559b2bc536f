package launch

import (
	"crypto/sha256"
	"encoding/binary"
)

// Strength says who can know a key, from weak to strong.
type Strength int

const (
	// KeyNone: nothing is shared but the convention; any process can know it.
	KeyNone Strength = iota
	// KeyPublic: made from the name of the job. It keeps jobs apart, but every
	// user of the cluster can work it out.
	KeyPublic
	// KeyGiven: holds GOLLECTIVE_JOB_KEY, and is as strong as that text.
	KeyGiven
	// KeyPrivate: holds random bits that the launcher gave to this job's
	// processes alone; on the host only their owner and root can read them.
	KeyPrivate
)

func (s Strength) String() string {
	switch s {
	case KeyPublic:
		return "keeps jobs apart, is no secret"
	case KeyGiven:
		return "as strong as " + envJobKey
	case KeyPrivate:
		return "private to the job"
	}
	return "none, any process can join"
}

// Secret authenticates the ranks of a job to each other. It never prints.
type Secret [32]byte

func (Secret) String() string   { return "(secret)" }
func (Secret) GoString() string { return "(secret)" }

// Key is the secret derived from what the processes of a job share. The zero Key
// is valid: it is the secret of jobs that share nothing.
type Key struct {
	Secret   Secret
	Strength Strength
	From     string // the variables it was made from
}

func (k Key) String() string {
	if k.From == "" {
		return k.Strength.String()
	}
	return "from " + k.From + ", " + k.Strength.String()
}

// with folds more shared texts into k. Every part is hashed with its length, so
// that no two lists of parts give the same input.
func (k Key) with(from string, strength Strength, parts ...string) Key {
	h := sha256.New()
	h.Write([]byte("gollective launch key 1\x00"))
	h.Write(k.Secret[:])
	for _, p := range append([]string{from}, parts...) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	out := Key{Strength: max(k.Strength, strength), From: from}
	if k.From != "" {
		out.From = k.From + " and " + from
	}
	h.Sum(out.Secret[:0])
	return out
}

// Ports made from a job's key are in [portBase, portBase+portCount): not
// privileged, below Linux's range for outgoing connections (32768) and
// below Kubernetes' node ports (30000).
const (
	portBase  = 10000
	portCount = 20000
)

// port is not the secret's bits themselves: a port can be seen by everybody.
func (k Key) port() int {
	sum := sha256.Sum256(append([]byte("gollective launch port 1\x00"), k.Secret[:]...))
	return portBase + int(binary.BigEndian.Uint32(sum[:])%portCount)
}
