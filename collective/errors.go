package collective

import (
	"github.com/gollective/gollective/internal/fault"
	"github.com/gollective/gollective/transport/shm"
)

// The causes of errors, for errors.Is. Errors of the first group are found before
// anything is sent and leave the communicator as it was. The others end it: every
// pending and later call of every rank returns the first cause.
var (
	// ErrInvalid: an argument is wrong (details: *ArgumentError).
	ErrInvalid = fault.ErrInvalid
	// ErrAlias: send and receive buffer overlap other than the collective's
	// in-place rule allows (details: *ArgumentError).
	ErrAlias = fault.ErrAlias
	// ErrUnsupported: what was asked for can't be done here.
	ErrUnsupported = fault.ErrUnsupported
	// ErrConcurrentUse: another goroutine is inside a blocking call on the
	// same communicator. The refused call has not happened, for this rank
	// and for the others.
	ErrConcurrentUse = fault.ErrConcurrentUse
	// ErrClosed: this rank has closed its communicator.
	ErrClosed = fault.ErrClosed

	// ErrMismatch: two ranks are in different calls (details: *MismatchError).
	ErrMismatch = fault.ErrMismatch
	// ErrTimeout: a deadline passed; also errors.Is(err,
	// context.DeadlineExceeded) (details: *TimeoutError).
	ErrTimeout = fault.ErrTimeout
	// ErrAborted: Abort was called or a context was cancelled on some rank
	// (details: *AbortError).
	ErrAborted = fault.ErrAborted
	// ErrPeerLost: the process of a rank has died, or can't be reached (details:
	// *PeerLostError).
	ErrPeerLost = fault.ErrPeerLost
	// ErrPeerClosed: a rank that a call needs has closed its communicator
	// (details: *PeerClosedError).
	ErrPeerClosed = fault.ErrPeerClosed
	// ErrSpace: there is not enough memory to share (details: *SpaceError).
	ErrSpace = shm.ErrSpace
)

// Details of errors, for errors.As:
//
//	var m *collective.MismatchError
//	if errors.As(err, &m) {
//		log.Printf("rank %d called %s, rank %d called %s", m.Rank, m.Call, m.PeerRank, m.PeerCall)
//	}
type (
	// ArgumentError is a wrong argument: Call, Reason, and Err (ErrInvalid,
	// ErrAlias or ErrUnsupported).
	ArgumentError = fault.Argument
	// MismatchError names both ranks and calls: Rank, Call, PeerRank, PeerCall,
	// and Sequence, the number of the collective at which they parted.
	MismatchError = fault.Mismatch
	// TimeoutError names the rank whose deadline passed (Rank, Call, Sequence) and
	// who was waited for: Missing have not entered the call, Silent, in it or not,
	// are in processes that do not answer, Waiting is the rank waited for otherwise
	// (-1: none).
	TimeoutError = fault.Timeout
	// AbortError says where the communicator was given up: Rank, Call, Cause.
	AbortError = fault.Abort
	// PeerLostError names the rank whose process is gone: Rank; Others, more ranks of
	// that process; Cause, how that was noticed.
	PeerLostError = fault.PeerLost
	// PeerClosedError names the rank that has closed (PeerRank) and the call that
	// needs it (Rank, Call, Sequence).
	PeerClosedError = fault.PeerClosed
	// SpaceError says how much shared memory is needed and free: Need, Free, in
	// bytes, and Cause.
	SpaceError = shm.SpaceError
)
