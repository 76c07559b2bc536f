package fault

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

var sentinels = []error{
	ErrInvalid, ErrAlias, ErrConcurrentUse, ErrUnsupported, ErrMismatch, ErrTimeout,
	ErrAborted, ErrPeerLost, ErrPeerClosed, ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// Another process's ranks return the same error: the same text, the same answers
// to errors.Is, the same details.
func TestErrorsAreTheSameAfterTheWayToAnotherProcess(t *testing.T) {
	for _, err := range []error{
		&Mismatch{Sequence: 3, Rank: 1, Call: "allreduce", PeerRank: 2, PeerCall: "broadcast"},
		&Timeout{Sequence: 4, Rank: 0, Call: "barrier", Missing: []int{5}, Waiting: -1, Cause: context.DeadlineExceeded},
		&Timeout{Sequence: 4, Rank: 0, Call: "barrier", Silent: []int{1, 2}, Waiting: 1, Cause: context.DeadlineExceeded},
		&Abort{Rank: 2},
		&Abort{Rank: 2, Call: "gather", Cause: context.Canceled},
		&Abort{Rank: 2, Cause: errors.New("the body failed")},
		&PeerLost{Rank: 1},
		&PeerLost{Rank: 1, Cause: errors.New("connection reset")},
		&PeerClosed{Sequence: 9, Rank: 0, Call: "send", PeerRank: 1},
	} {
		t.Run(err.Error(), func(t *testing.T) {
			for _, sent := range []error{err, fmt.Errorf("wrapped: %w", err)} {
				got := Decode(Encode(sent))
				require.Equal(t, err.Error(), got.Error())
				require.IsType(t, err, got)
				for _, sentinel := range sentinels {
					require.Equal(t, errors.Is(err, sentinel), errors.Is(got, sentinel), "%v", sentinel)
				}
				require.Equal(t, got, Decode(Encode(got)), "once more")
			}
		})
	}
}

func TestAnErrorWithoutDetailsKeepsItsText(t *testing.T) {
	got := Decode(Encode(errors.New("out of memory")))
	require.ErrorIs(t, got, ErrAborted)
	require.ErrorContains(t, got, "out of memory")
}

// Bytes come from another process: whatever they are, there is an error to return,
// with a text, that ends the communicator.
func FuzzDecode(f *testing.F) {
	f.Add(Encode(&Mismatch{Sequence: 3, Rank: 1, Call: "allreduce", PeerRank: 2, PeerCall: "broadcast"}))
	f.Add(Encode(&Timeout{Missing: []int{1}, Cause: context.DeadlineExceeded}))
	f.Add([]byte("{}"))
	f.Add([]byte("null"))
	f.Add([]byte(`{"Timeout":{}}`))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		err := Decode(text)
		if err == nil || err.Error() == "" {
			t.Fatalf("no error for %q", text)
		}
		known := false
		for _, sentinel := range sentinels {
			known = known || errors.Is(err, sentinel)
		}
		if !known {
			t.Fatalf("%v is none of the communicator's errors", err)
		}
		if again := Decode(Encode(err)); again.Error() == "" {
			t.Fatal("the second way lost the text")
		}
	})
}
