// Package fault holds the errors of a communicator: a sentinel for each cause,
// for errors.Is, and a type with the details, for errors.As. Package collective
// re-exports them; they live here so that the layers below can make them.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrInvalid: an argument is wrong; nothing has been sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrAlias: the send and the receive buffer overlap in a way that the
	// collective does not allow; nothing has been sent.
	ErrAlias = errors.New("send and receive buffers overlap")
	// ErrConcurrentUse: another goroutine is inside a call on the same
	// communicator; nothing has been sent.
	ErrConcurrentUse = errors.New("concurrent use of a communicator")
	// ErrUnsupported: what was asked for can't be done by this build, by this
	// memory or on this machine.
	ErrUnsupported = errors.New("not supported")
	// ErrMismatch: two ranks are in different calls.
	ErrMismatch = errors.New("ranks disagree on the call")
	// ErrTimeout: a deadline passed before the operation was complete.
	ErrTimeout = errors.New("timed out")
	// ErrAborted: Abort was called, or a context was cancelled, on some rank.
	ErrAborted = errors.New("communicator aborted")
	// ErrPeerLost: the process of a rank has died, or can't be reached.
	ErrPeerLost = errors.New("peer lost")
	// ErrPeerClosed: a rank that is needed has closed its communicator.
	ErrPeerClosed = errors.New("peer has closed the communicator")
	// ErrClosed: this rank has closed its communicator.
	ErrClosed = errors.New("communicator is closed")
)

// Argument is a wrong argument of one call.
type Argument struct {
	Call   string // as plan.Spec prints it, or the function's name
	Reason string
	Err    error // ErrInvalid, ErrAlias or ErrUnsupported
}

func (e *Argument) Error() string { return fmt.Sprintf("%s: %v: %s", e.Call, e.Err, e.Reason) }
func (e *Argument) Unwrap() error { return e.Err }

// Mismatch is a call that two ranks made differently.
type Mismatch struct {
	// Sequence is how many collectives the communicator completed before this
	// one; for point-to-point traffic, how many messages the pair exchanged.
	Sequence uint64
	Rank     int    // the rank that noticed
	Call     string // what it called
	PeerRank int
	PeerCall string // what the other rank called
}

func (e *Mismatch) Error() string {
	return fmt.Sprintf("%v: operation %d: rank %d is in %s, rank %d in %s",
		ErrMismatch, e.Sequence, e.Rank, e.Call, e.PeerRank, e.PeerCall)
}
func (e *Mismatch) Unwrap() error { return ErrMismatch }

// Timeout is an operation that was not complete at its deadline.
type Timeout struct {
	Sequence uint64 // as in Mismatch
	Rank     int    // the rank whose deadline passed
	Call     string
	Missing  []int // ranks that have not entered the operation
	Silent   []int // ranks, in the operation or not, that do not answer any more
	Waiting  int   // the rank waited for when all have entered; -1 if not, or if the call had not begun
	Cause    error `json:"-"` // context.DeadlineExceeded
}

func (e *Timeout) Error() string {
	var who string
	switch {
	case len(e.Missing) == 1:
		who = fmt.Sprintf("rank %d has not entered it", e.Missing[0])
	case len(e.Missing) > 1:
		who = fmt.Sprintf("ranks %s have not entered it", ranksText(e.Missing))
	case len(e.Silent) > 0:
		who = fmt.Sprintf("no answer from rank %s", ranksText(e.Silent))
	case e.Waiting >= 0:
		who = fmt.Sprintf("waiting for rank %d", e.Waiting)
	default:
		who = "the deadline had passed before it began"
	}
	if len(e.Missing) > 0 && len(e.Silent) > 0 {
		who += "; no answer from rank " + ranksText(e.Silent)
	}
	return fmt.Sprintf("%v: operation %d: rank %d in %s: %s", ErrTimeout, e.Sequence, e.Rank, e.Call, who)
}
func (e *Timeout) Unwrap() []error { return []error{ErrTimeout, e.Cause} }

// Abort is the end of a communicator by Abort or by a cancelled context.
type Abort struct {
	Rank  int    // where it happened
	Call  string // the call in progress there, if any
	Cause error  `json:"-"` // context.Canceled, or nil for Abort
}

func (e *Abort) Error() string {
	text := fmt.Sprintf("%v by rank %d", ErrAborted, e.Rank)
	if e.Call != "" {
		text += " in " + e.Call
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Abort) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrAborted}
	}
	return []error{ErrAborted, e.Cause}
}

// PeerLost is a rank whose process has died, or can't be reached any more.
type PeerLost struct {
	Rank   int
	Others []int `json:",omitempty"` // more ranks of the same process
	Cause  error `json:"-"`          // how it was noticed
}

func (e *PeerLost) Error() string {
	text := fmt.Sprintf("%v: rank %s", ErrPeerLost, ranksText(append([]int{e.Rank}, e.Others...)))
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}
func (e *PeerLost) Unwrap() error { return ErrPeerLost }

// PeerClosed is a rank that closed its communicator while it was needed.
type PeerClosed struct {
	Sequence uint64
	Rank     int // the rank that noticed
	Call     string
	PeerRank int
}

func (e *PeerClosed) Error() string {
	return fmt.Sprintf("%v: operation %d: rank %d in %s needs rank %d",
		ErrPeerClosed, e.Sequence, e.Rank, e.Call, e.PeerRank)
}
func (e *PeerClosed) Unwrap() error { return ErrPeerClosed }

// ranksText lists ranks, the first eight of many.
func ranksText(ranks []int) string {
	const most = 8
	var b strings.Builder
	for i, r := range ranks {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(ranks)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, r)
	}
	return b.String()
}

// Renumber returns err with each rank r in it replaced by as(r): what happened in
// one communicator, in the numbers of another that has some of its ranks. A loss
// keeps its numbers: each communicator is told of it in its own.
func Renumber(err error, as func(rank int) int) error {
	all := func(ranks []int) []int {
		var out []int
		for _, r := range ranks {
			out = append(out, as(r))
		}
		return out
	}
	var timeout *Timeout
	var abort *Abort
	var mismatch *Mismatch
	var closed *PeerClosed
	switch {
	case errors.As(err, &timeout):
		t := *timeout
		t.Rank, t.Missing, t.Silent = as(t.Rank), all(t.Missing), all(t.Silent)
		if t.Waiting >= 0 {
			t.Waiting = as(t.Waiting)
		}
		return &t
	case errors.As(err, &mismatch):
		m := *mismatch
		m.Rank, m.PeerRank = as(m.Rank), as(m.PeerRank)
		return &m
	case errors.As(err, &closed):
		c := *closed
		c.Rank, c.PeerRank = as(c.Rank), as(c.PeerRank)
		return &c
	case errors.As(err, &abort):
		a := *abort
		a.Rank = as(a.Rank)
		return &a
	}
	return err
}
