package perf

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/gollective/gollective/dtype"
)

// The sizes and factors of nccl-tests' table for 1 MiB of floats over 4 ranks.
func TestLayouts(t *testing.T) {
	const n, elements = 4, 1 << 18
	for _, tc := range []struct {
		name              string
		send, recv, count int
		moved             int
		bus               float64
	}{
		{"all_reduce", elements, elements, elements, elements, 1.5},
		{"all_gather", elements / n, elements, elements / n, elements, 0.75},
		{"reduce_scatter", elements, elements / n, elements / n, elements, 0.75},
		{"broadcast", elements, elements, elements, elements, 1},
		{"reduce", elements, elements, elements, elements, 1},
		{"alltoall", elements, elements, elements / n, elements, 0.75},
		{"alltoallv", elements, elements, elements / n, elements, 0.75},
		{"gather", elements / n, elements, elements / n, elements, 0.75},
		{"scatter", elements, elements / n, elements / n, elements, 0.75},
		{"sendrecv", elements, elements, elements, elements, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			test := testNamed(tc.name)
			l := test.layout(elements, 4, n)
			assert.Equal(t, []int{tc.send, tc.recv, tc.count, tc.moved}, []int{l.send, l.recv, l.count, l.moved})
			assert.InDelta(t, tc.bus, test.bus(n), 1e-12)
			// In place, every rank's window lies within the larger buffer.
			larger := max(l.send, l.recv)
			assert.LessOrEqual(t, (n-1)*l.sendShift+l.send, larger)
			assert.LessOrEqual(t, (n-1)*l.recvShift+l.recv, larger)
		})
	}
	assert.Len(t, Collectives(), 10)
	assert.Nil(t, testNamed("hypercube"))
}

func TestBlocksAreRoundedDownToSixteenBytes(t *testing.T) {
	assert.Equal(t, 0, perRank(15, 1, 1))
	assert.Equal(t, 16, perRank(127, 1, 4))
	assert.Equal(t, 4, perRank(31, 4, 4))
	assert.Equal(t, 2, perRank(11, 8, 4))
}

func TestUnevenExchange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 20).Draw(t, "ranks")
		total := rapid.IntRange(0, 1<<20).Draw(t, "total")
		elemBytes := rapid.SampledFrom(dtype.All()).Draw(t, "type").Size()
		spread := rapid.Float64Range(0, 1).Draw(t, "spread")
		u := newUneven(total, elemBytes, ranks, spread)
		if u.total() > total {
			t.Fatalf("%d elements of %d", u.total(), total)
		}
		for a := range ranks {
			sent, sentAt := u.sent(a)
			for b := range ranks {
				received, receivedAt := u.received(b)
				if sent[b] != received[a] || sent[b]*elemBytes%16 != 0 {
					t.Fatalf("%d sends %d elements to %d, which expects %d", a, sent[b], b, received[a])
				}
				if receivedAt[a]+received[a] > u.total() || sentAt[b]+sent[b] > u.total() {
					t.Fatalf("block of %d and %d out of the buffer", a, b)
				}
			}
		}
	})
	u := newUneven(600, 1, 4, 1)
	assert.Equal(t, []int{0, 96, 192, 288}, u.counts)
	assert.Equal(t, []int{144, 144, 144, 144}, newUneven(600, 1, 4, 0).counts)
	assert.Equal(t, []int{592}, newUneven(600, 1, 1, 1).counts)
}
