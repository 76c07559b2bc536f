package exec

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/spin"
)

// A worker in the middle of a chunk does not look at its other messages: they may
// have come long ago. Saying that it waits for them would make their senders, who are
// in their next call by now, believe in a circle.
func TestWhoWaitsInAChunkSaysSoOfNoOtherMessage(t *testing.T) {
	const n = 3
	all := engines(t, n, smallWorld(1), spin.Adaptive, inOneHub())
	e := all[0]
	call := Call{Spec: plan.Spec{Kind: plan.AlltoAll, Type: dtype.Int32, Count: 1}}
	program, err := e.program(context.Background(), &call)
	require.NoError(t, err)
	l := &launch{ctx: t.Context(), works: []Work{{Program: program, Call: call}}, number: 1}
	w, work := e.main, &l.works[0]
	w.bind(l, work, &program.channels[0], 0)
	w.active = append(w.active, program.channels[0].transfers...)
	require.Len(t, w.active, 2*(n-1))

	w.startWaiting(&w.any)
	record := e.ledger.WaitsOf(0)[0]
	require.ElementsMatch(t, []int{1, 2}, record.From)
	require.ElementsMatch(t, []int{1, 2}, record.To)
	w.stopWaiting()

	for _, moving := range w.active {
		w.moving = moving
		w.startWaiting(&w.any)
		record := e.ledger.WaitsOf(0)[0]
		if moving.Send {
			require.Equal(t, []int{moving.Peer}, record.To)
			require.Empty(t, record.From)
		} else {
			require.Equal(t, []int{moving.Peer}, record.From)
			require.Empty(t, record.To)
		}
		for _, other := range w.active { // that they are still to come stays known
			require.True(t, record.Serves(other.end(), other.Send), "%+v", other.Transfer)
		}
		w.stopWaiting()
	}
	w.moving, w.active = nil, w.active[:0]
}
