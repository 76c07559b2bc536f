package collective_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/bench/perf/verify"
	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// GOLLECTIVE_TEST_BIG=1 moves buffers of more than 2^31 and 2^32 bytes, which takes
// 10 GiB and a minute. Without it the plans for such buffers are looked at.

// extent is a range of bytes of a buffer.
type extent struct{ begin, end int }

// requireTiles checks that the extents, in any order, cover [0,total) without gap
// and without overlap.
func requireTiles(t *testing.T, what string, extents []extent, total int) {
	t.Helper()
	slices.SortFunc(extents, func(a, b extent) int { return cmp.Compare(a.begin, b.begin) })
	at := 0
	for _, e := range extents {
		if e.begin == e.end {
			continue
		}
		require.Equal(t, at, e.begin, "%s: begin of a piece up to %d", what, e.end)
		require.Greater(t, e.end, e.begin, what)
		at = e.end
	}
	require.Equal(t, total, at, "%s: end of the last piece", what)
}

// written lists what a plan stores in the receive buffer, and checks that what it
// reads of the send buffer lies in it.
func written(t *testing.T, p *plan.Plan, sendBytes int) []extent {
	t.Helper()
	var out []extent
	size := p.Spec.Type.Size()
	piece := func(thread *plan.Thread, loop, block int) extent {
		offset, count := thread.Range(loop, block)
		return extent{offset * size, (offset + count) * size}
	}
	for _, c := range p.Channels {
		for i := range c.Threads {
			thread := &c.Threads[i]
			for loop := range thread.Loops() {
				for _, s := range thread.Steps {
					if s.Out != plan.None && s.Action != plan.DoSendFromOutput {
						out = append(out, piece(thread, loop, s.Out))
					}
					if s.In != plan.None {
						e := piece(thread, loop, s.In)
						require.True(t, 0 <= e.begin && e.begin <= e.end && e.end <= sendBytes, "%v reads %v", p.Spec, e)
					}
				}
			}
		}
		for _, m := range c.Transfers {
			e := extent{m.Offset, m.Offset + m.Bytes}
			if m.Send {
				require.True(t, 0 <= e.begin && e.begin <= e.end && e.end <= sendBytes, "%v sends %v", p.Spec, e)
			} else {
				out = append(out, e)
			}
		}
		for _, m := range c.Copies {
			out = append(out, extent{m.ToOffset, m.ToOffset + m.Bytes})
		}
	}
	return out
}

// Offsets are computed in int everywhere: a plan for more than 2^31 or 2^32
// elements, or bytes, covers its buffers like any other.
func TestPlansOfBuffersBeyond32BitsCoverThem(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("an int has 32 bits here: such buffers cannot exist")
	}
	kinds := []plan.Kind{
		plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter,
		plan.AlltoAll, plan.Gather, plan.Scatter,
	}
	const ranks, root = 3, 1
	for _, kind := range kinds {
		for _, algorithm := range []plan.Algorithm{plan.Ring, plan.Tree, plan.OneShot} {
			for _, protocol := range []plan.Protocol{plan.Simple, plan.LL, plan.LL128} {
				if algorithm == plan.Tree && kind != plan.AllReduce {
					continue
				}
				for shift, typ := range map[int]dtype.Type{31: dtype.Uint8, 32: dtype.Int8, 30: dtype.Int32, 29: dtype.Float64} {
					w := bigWorld(ranks)
					w.Force = plan.Choice{Algorithm: algorithm, Protocol: protocol, Channels: 2}
					spec := plan.Spec{Kind: kind, Type: typ, Op: reduce.Sum, Count: 1<<shift + 12345, Root: root}
					requireCoverage(t, spec, w)
				}
			}
		}
	}
}

// bigWorld has FIFOs large enough for plans of gigabytes to have thousands of steps
// and not millions.
func bigWorld(ranks int) plan.World {
	w := plan.World{Size: ranks, MaxChannels: 4, RanksPerNode: 1, OrderedStores: true}
	for p := plan.Simple; p <= plan.LL128; p++ {
		w.Payload[p] = 60 * 128 << 10
		w.P2PPayload[p] = 4 << 20
	}
	return w
}

func requireCoverage(t *testing.T, spec plan.Spec, w plan.World) {
	t.Helper()
	block := spec.Count * spec.Type.Size()
	for w.Rank = range w.Size {
		p, err := plan.Build(spec, w)
		require.NoError(t, err)
		sends, receives := 1, 1
		atRoot := w.Rank == spec.Root
		switch spec.Kind {
		case plan.Reduce:
			receives = blocksIf(atRoot, 1)
		case plan.Broadcast:
			sends = blocksIf(atRoot, 1)
		case plan.AllGather:
			receives = w.Size
		case plan.ReduceScatter:
			sends = w.Size
		case plan.AlltoAll:
			sends, receives = w.Size, w.Size
		case plan.Gather:
			receives = blocksIf(atRoot, w.Size)
		case plan.Scatter:
			sends = blocksIf(atRoot, w.Size)
		}
		what := fmt.Sprintf("%v, %v, rank %d", spec, p.Choice, w.Rank)
		requireTiles(t, what, written(t, p, sends*block), receives*block)
	}
}

func blocksIf(here bool, blocks int) int {
	if here {
		return blocks
	}
	return 0
}

// Two ranks, in place, real memory.
func TestBuffersBeyond32BitsGiveExactResults(t *testing.T) {
	if os.Getenv("GOLLECTIVE_TEST_BIG") != "1" {
		t.Skip("moves 9 GB: set GOLLECTIVE_TEST_BIG=1")
	}
	if strconv.IntSize < 64 {
		t.Skip("an int has 32 bits here: such buffers cannot exist")
	}
	for _, tc := range []struct {
		name  string
		typ   dtype.Type
		bytes int64
		kinds []plan.Kind
	}{
		{"2.2e9 int8", dtype.Int8, 2_200_000_003, []plan.Kind{plan.AllReduce}},
		{"4.4e9 uint8", dtype.Uint8, 4_400_000_006, []plan.Kind{plan.AllReduce, plan.AllGather, plan.ReduceScatter, plan.Send}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bytes := int(tc.bytes)
			if free, known := availableMemory(t); known && free < 2*bytes+1<<30 {
				t.Skipf("needs %d bytes, %d are available", 2*bytes+1<<30, free)
			}
			buffers := [2][]byte{make([]byte, bytes), make([]byte, bytes)}
			for _, kind := range tc.kinds {
				t.Run(kind.String(), func(t *testing.T) { bigCall(t, kind, tc.typ, buffers) })
			}
		})
	}
}

// bigCall makes a call over two ranks, whose buffers are all of theirs.
func bigCall(t *testing.T, kind plan.Kind, typ dtype.Type, buffers [2][]byte) {
	inParts(buffers, func(rank, first int, part []byte) { bigData(rank).Fill(part, first) })
	require.NoError(t, collectiveOfTwo(kind, typ, buffers))

	var wrong atomic.Int64
	inParts(buffers, func(rank, first int, part []byte) {
		want := make([]byte, len(part))
		bigResult(want, kind, rank, first, len(buffers[rank]))
		wrong.Add(int64(verify.Wrong(part, want, 1)))
	})
	assert.Zero(t, wrong.Load(), "bytes are wrong")
}

func collectiveOfTwo(kind plan.Kind, typ dtype.Type, buffers [2][]byte) error {
	return collective.Run(2, func(c *collective.Comm) error {
		whole := buffers[c.Rank()]
		half := len(whole) / 2
		mine := whole[c.Rank()*half : (c.Rank()+1)*half]
		call := collective.Call{Kind: kind, Type: typ, Op: collective.Sum, Count: len(whole), Send: whole, Recv: whole}
		switch kind {
		case plan.AllGather:
			call.Send, call.Count = mine, half
		case plan.ReduceScatter:
			call.Recv, call.Count = mine, half
		case plan.Send:
			if c.Rank() == 1 {
				call.Kind = plan.Recv
			}
			call.Root = 1 - c.Rank()
		}
		return c.Do(context.Background(), call)
	})
}

// bigData is what a rank brings; it nowhere repeats.
func bigData(rank int) verify.Pattern { return verify.Pattern{Seed: uint64(rank) + 5} }

// bigResult makes the bytes from first on that rank's buffer of total bytes must
// hold after the call.
func bigResult(want []byte, kind plan.Kind, rank, first, total int) {
	if border := total/2 - first; 0 < border && border < len(want) {
		bigResult(want[:border], kind, rank, first, total)
		bigResult(want[border:], kind, rank, total/2, total)
		return
	}
	block := 0
	if first >= total/2 {
		block = 1
	}
	from := rank
	switch kind {
	case plan.AllGather:
		from = block
	case plan.Send:
		from = 0
	}
	bigData(from).Fill(want, first)
	if kind == plan.AllReduce || kind == plan.ReduceScatter && rank == block {
		other := make([]byte, len(want))
		bigData(1-from).Fill(other, first)
		for i, x := range other {
			want[i] += x
		}
	}
}

// inParts calls visit for all parts of both buffers, on a goroutine per buffer.
func inParts(buffers [2][]byte, visit func(rank, first int, part []byte)) {
	const most = 1 << 20
	var all sync.WaitGroup
	for rank, b := range buffers {
		all.Go(func() {
			for first := 0; first < len(b); first += most {
				visit(rank, first, b[first:min(first+most, len(b))])
			}
		})
	}
	all.Wait()
}

// availableMemory is what the system could give without swapping, where it says so.
func availableMemory(t *testing.T) (bytes int, known bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(text, "kB")))
			require.NoError(t, err)
			return kib << 10, true
		}
	}
	return 0, false
}
