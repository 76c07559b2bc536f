package proto

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/transport"
)

// The operands of a reduction are combined in the order of the FIFOs, with the
// input behind as many of them as Own says; in place too. The values are such that
// every order has a sum of its own.
func TestTheInputIsCombinedInItsPlace(t *testing.T) {
	operands := []float64{1 << 24, 1, -(1 << 24), 3 << 22, 0.75}
	kernel, err := reduce.For(dtype.Float32, reduce.Sum, len(operands), reduce.Scalar{})
	require.NoError(t, err)
	const count = 2000 // several batches of lines
	chunkOf := func(value float64) []byte {
		values := make([]float64, count)
		for i := range values {
			values[i] = value
		}
		return encode(dtype.Float32, values)
	}
	var sum float32
	for _, x := range operands {
		sum += float32(x)
	}
	want := chunkOf(float64(sum))
	for _, flavour := range flavours {
		for own, mine := range operands {
			for _, inPlace := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, own input at %d, in place %v", flavour.name, own, inPlace), func(t *testing.T) {
					chunks := flavour.chunks[0]
					ends := Ends{Own: own}
					w := boundWaiter(t.Context())
					for rank, x := range operands {
						if rank == own {
							continue
						}
						conn := newConn(t, flavour.slotBytes(4*count), 0)
						ends.From = append(ends.From, transport.NewRecvEnd(conn, rank))
						peer := flavour.open(Ends{To: []*transport.SendEnd{transport.NewSendEnd(conn, own)}}, 4, 4*count, chunks)
						peer.Begin(Operation{Waiter: w})
						require.NoError(t, peer.Send(chunkOf(x)))
					}
					pipe := flavour.open(ends, 4, 4*count, chunks)
					pipe.Begin(Operation{Waiter: w, Kernel: &kernel})
					in := chunkOf(mine)
					out := make([]byte, len(in))
					if inPlace {
						out = in
					}
					require.NoError(t, pipe.RecvReduceCopy(in, out))
					require.Equal(t, want, out)
				})
			}
		}
	}
}

// What a proxy takes away is sent from the user's memory if it stays as it is, and
// from the slot if something may be received into it first.
func TestMemoryThatMayBeOverwrittenIsNotSentFrom(t *testing.T) {
	for _, overwritten := range []bool{false, true} {
		haul := new(transport.Haul)
		memory := make([]byte, transport.Slots*SlotBytesSimple(2*lendBytes))
		conn := transport.NewHauledConn(memory, haul)
		end := transport.NewSendEnd(conn, 1)
		pipe := NewSimple(Ends{To: []*transport.SendEnd{end}, Overwritten: overwritten}, 1, 2*lendBytes, 1, 1)
		pipe.Begin(Operation{Waiter: boundWaiter(t.Context())})
		in := make([]byte, lendBytes)
		in[0] = 1
		require.NoError(t, pipe.Send(in))
		in[0] = 2
		post, posted := transport.NewOutbound(conn).Next(0)
		require.True(t, posted)
		require.Equal(t, overwritten, post.Memory[0] == 1)
	}
}
