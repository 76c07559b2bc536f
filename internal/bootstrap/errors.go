package bootstrap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gollective/gollective/internal/address"
	"github.com/gollective/gollective/internal/handshake"
)

var (
	// ErrMissing: ranks had not checked in when the deadline passed.
	ErrMissing = errors.New("ranks are missing")
	// ErrClaimed: two processes say they are the same rank.
	ErrClaimed = errors.New("rank claimed twice")
	// ErrSize: two processes disagree on the number of ranks.
	ErrSize = errors.New("world sizes differ")
	// ErrVersion: the other side speaks another version of this protocol.
	ErrVersion = handshake.ErrVersion
	// ErrStranger: whatever answered can't prove that it belongs to the job.
	ErrStranger = handshake.ErrStranger
	// ErrTLS: one process is told to encrypt its connections and the other is not,
	// or their certificates don't fit.
	ErrTLS = handshake.ErrTLS
	// ErrRoot: the root's process went away before the job had started.
	ErrRoot = errors.New("the root went away")
	// ErrLost: a process died, or vanished without a goodbye.
	ErrLost = errors.New("process lost")
	// ErrGaveUp: a process ended its own Join with an error.
	ErrGaveUp = errors.New("process gave up joining")
	// ErrLeft: a process that is needed has left.
	ErrLeft = errors.New("process has left")
	// ErrTimeout: a step was not complete at its deadline.
	ErrTimeout = errors.New("timed out")
	// ErrClosed: this Control, or this Root, has been closed.
	ErrClosed = errors.New("closed")
	// ErrBacklog: too much that this process has sent is still unconfirmed.
	ErrBacklog = errors.New("too many unconfirmed messages")
	// ErrConfig: an argument is wrong; nothing has been sent.
	ErrConfig = address.ErrConfig
	// ErrPort: no port of those allowed is free.
	ErrPort = address.ErrPort
)

// wireErrors are the causes that travel between processes, by their code; the
// order is part of the protocol.
var wireErrors = []error{nil, ErrGaveUp, ErrMissing, ErrClaimed, ErrSize, ErrRoot, ErrLost, ErrTimeout}

const codeGaveUp = 1 // stands for every other cause; the detail says which

func errorCode(err error) uint8 {
	for code := 1; code < len(wireErrors); code++ {
		if errors.Is(err, wireErrors[code]) {
			return uint8(code)
		}
	}
	return codeGaveUp
}

// Phase is a step of joining.
type Phase string

// The phases of Join, in their order.
const (
	PhaseRoot    Phase = "reach the root"
	PhaseListen  Phase = "listen"
	PhaseCheckIn Phase = "check in"
	PhaseAddress Phase = "learn the next rank's address"
	PhaseRing    Phase = "connect the ring"
	PhaseGather  Phase = "gather descriptions"
	PhaseJoined  Phase = "joined"
)

// Error is the failure of a Join, the same on every process that could be told.
type Error struct {
	Phase    Phase  // where it was noticed
	Addr     string // host:port, or unix:@name, that was waited for; may be empty
	Rank     int    // the rank waited for, or at fault; -1 when there isn't one
	Reporter int    // the rank that noticed; -1 for the root
	Missing  []int  // with ErrMissing: who had not checked in, ascending
	Detail   string
	Err      error // one of the sentinels, or the cause found on this process
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bootstrap: %s", e.Phase)
	if e.Rank >= 0 {
		fmt.Fprintf(&b, ": rank %d", e.Rank)
	}
	if e.Addr != "" {
		fmt.Fprintf(&b, " at %s", e.Addr)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, " (%s)", ranksText(e.Missing))
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// LostError is the death of a process as its survivors are told of it.
type LostError struct {
	Rank  int    // who is lost
	By    int    // who noticed
	Cause string // what it noticed
}

func (e *LostError) Error() string {
	return fmt.Sprintf("bootstrap: %v: rank %d, noticed by rank %d: %s", ErrLost, e.Rank, e.By, e.Cause)
}

func (e *LostError) Unwrap() error { return ErrLost }

// ranksText writes ascending ranks as ranges, the first sixteen of many.
func ranksText(ranks []int) string {
	const most = 16
	var parts []string
	shown := 0
	for i := 0; i < len(ranks) && len(parts) < most; {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		part := strconv.Itoa(ranks[i])
		if j > i {
			part += "-" + strconv.Itoa(ranks[j])
		}
		parts = append(parts, part)
		shown += j - i + 1
		i = j + 1
	}
	word := "ranks "
	if len(ranks) == 1 {
		word = "rank "
	}
	text := word + strings.Join(parts, ", ")
	if rest := len(ranks) - shown; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}
