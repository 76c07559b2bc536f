package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each detailed error says its cause to errors.Is and the facts to a reader.
func TestErrorsNameTheirCauseTheRanksAndTheCalls(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		is   []error
		text string
	}{
		{
			"an argument",
			&Argument{Call: "allreduce", Reason: "the send buffer is short", Err: ErrInvalid},
			[]error{ErrInvalid},
			"allreduce: invalid argument: the send buffer is short",
		},
		{
			"a mismatch",
			&Mismatch{Sequence: 3, Rank: 1, Call: "allreduce", PeerRank: 2, PeerCall: "broadcast"},
			[]error{ErrMismatch},
			"ranks disagree on the call: operation 3: rank 1 is in allreduce, rank 2 in broadcast",
		},
		{
			"a timeout with one rank missing",
			&Timeout{Sequence: 4, Rank: 0, Call: "barrier", Missing: []int{5}, Waiting: 1, Cause: context.DeadlineExceeded},
			[]error{ErrTimeout, context.DeadlineExceeded},
			"timed out: operation 4: rank 0 in barrier: rank 5 has not entered it",
		},
		{
			"a timeout with many ranks missing",
			&Timeout{Rank: 0, Call: "barrier", Missing: []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, Waiting: -1, Cause: context.DeadlineExceeded},
			[]error{ErrTimeout},
			"timed out: operation 0: rank 0 in barrier: ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more have not entered it",
		},
		{
			"a timeout with all ranks there",
			&Timeout{Rank: 0, Call: "barrier", Waiting: 6, Cause: context.DeadlineExceeded},
			[]error{ErrTimeout},
			"timed out: operation 0: rank 0 in barrier: waiting for rank 6",
		},
		{
			"a timeout of nobody in particular",
			&Timeout{Rank: 0, Call: "barrier", Waiting: -1, Cause: context.DeadlineExceeded},
			[]error{ErrTimeout},
			"timed out: operation 0: rank 0 in barrier: the deadline had passed before it began",
		},
		{
			"an abort",
			&Abort{Rank: 2},
			[]error{ErrAborted},
			"communicator aborted by rank 2",
		},
		{
			"a cancelled context",
			&Abort{Rank: 2, Call: "gather", Cause: context.Canceled},
			[]error{ErrAborted, context.Canceled},
			"communicator aborted by rank 2 in gather: context canceled",
		},
		{
			"a closed peer",
			&PeerClosed{Sequence: 9, Rank: 0, Call: "send", PeerRank: 1},
			[]error{ErrPeerClosed},
			"peer has closed the communicator: operation 9: rank 0 in send needs rank 1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.EqualError(t, tc.err, tc.text)
			for _, is := range tc.is {
				require.ErrorIs(t, tc.err, is)
			}
			for _, other := range []error{ErrInvalid, ErrMismatch, ErrTimeout, ErrAborted, ErrPeerClosed, ErrClosed, ErrConcurrentUse, ErrUnsupported, ErrAlias} {
				if other != tc.is[0] {
					require.False(t, errors.Is(tc.err, other), "it is %v", other)
				}
			}
		})
	}
}

func TestRenumberedErrorsNameTheSameRanks(t *testing.T) {
	as := func(r int) int { return r + 10 }
	require.Equal(t, &Timeout{Rank: 11, Missing: []int{12, 13}, Silent: []int{12}, Waiting: -1, Cause: context.DeadlineExceeded},
		Renumber(&Timeout{Rank: 1, Missing: []int{2, 3}, Silent: []int{2}, Waiting: -1, Cause: context.DeadlineExceeded}, as))
	require.Equal(t, &Mismatch{Rank: 11, PeerRank: 12}, Renumber(&Mismatch{Rank: 1, PeerRank: 2}, as))
	require.Equal(t, &PeerClosed{Rank: 11, PeerRank: 12}, Renumber(&PeerClosed{Rank: 1, PeerRank: 2}, as))
	require.Equal(t, &Abort{Rank: 11, Call: "x"}, Renumber(&Abort{Rank: 1, Call: "x"}, as))
	require.Equal(t, &PeerLost{Rank: 1}, Renumber(&PeerLost{Rank: 1}, as))
	require.Equal(t, ErrClosed, Renumber(ErrClosed, as))
}
