package collective_test

import (
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/collective/internal/pairwise"
	"github.com/gollective/gollective/collective/internal/trial"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// guards hands out buffers beside pages that can be neither read nor written: a
// single byte outside ends the program with the address and the stack.
type guards struct {
	t    *testing.T
	maps [][]byte
}

// mapped returns pages for bytes bytes with a guard page on either side.
func (g *guards) mapped(bytes int) (pages []byte) {
	page := os.Getpagesize()
	inner := max(1, (bytes+page-1)/page) * page
	whole, err := unix.Mmap(-1, 0, inner+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(g.t, err)
	g.maps = append(g.maps, whole)
	pages = whole[page : page+inner]
	require.NoError(g.t, unix.Mprotect(pages, unix.PROT_READ|unix.PROT_WRITE))
	return pages
}

// behind is a buffer whose first byte follows a guard page.
func (g *guards) behind(bytes, _ int) (around []byte, before int) {
	return g.mapped(bytes), 0
}

// ahead is a buffer whose last byte is followed by a guard page.
func (g *guards) ahead(bytes, _ int) (around []byte, before int) {
	pages := g.mapped(bytes)
	return pages, len(pages) - bytes
}

func (g *guards) release() {
	for _, m := range g.maps {
		require.NoError(g.t, unix.Munmap(m))
	}
	g.maps = nil
}

func TestAGuardPageStopsASingleByte(t *testing.T) {
	g := &guards{t: t}
	defer g.release()
	touches := func(around []byte, at int) (faults bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { faults = recover() != nil }()
		whole := g.maps[len(g.maps)-1]
		around[0] = whole[os.Getpagesize()+at]
		return false
	}
	pages, before := g.behind(100, 0)
	assert.Zero(t, before)
	assert.False(t, touches(pages, 0))
	assert.True(t, touches(pages, -1))
	pages, before = g.ahead(100, 0)
	assert.Equal(t, len(pages), before+100)
	assert.False(t, touches(pages, len(pages)-1))
	assert.True(t, touches(pages, len(pages)))
}

func TestNothingOutsideTheBuffersIsReadOrWritten(t *testing.T) {
	types := []dtype.Type{dtype.Int8, dtype.Half, dtype.Float32, dtype.Float64, dtype.F8E4M3, dtype.Int32}
	counts := []int{0, 1, 3, 7, 17, 61, 121, 513, 1023, 2049}
	ranks := []int{1, 2, 3, 4, 5}
	ops := []reduce.Op{reduce.Sum, reduce.Avg, reduce.PreMulSum, reduce.Max}
	rows := pairwise.Cover(
		// kind, count, ranks, op, place, algorithm, protocol, channels, FIFOs
		[]int{len(tableKinds), len(counts), len(ranks), len(ops), 2, 2, 3, 3, 3},
		func(f, a, g, b int) bool {
			return f != 0 || g != 4 || kindAllows(tableKinds[a], fPlace, b)
		})
	g := &guards{t: t}
	for i, row := range rows {
		s := setting{ranks: ranks[row[2]], config: tableFIFOs[row[8]], form: trial.Form(i % int(trial.FormsCount))}
		s.config.Algorithm, s.config.Protocol = plan.Algorithm(row[5]+1), plan.Protocol(row[6]+1)
		s.config.Channels, s.config.RanksPerNode = row[7]+1, i%3
		s.config.Timeout = time.Minute
		s.Case = trial.Case{
			Kind: tableKinds[row[0]], Count: counts[row[1]], Op: ops[row[3]],
			InPlace: row[4] == 1, Seed: uint64(i),
		}
		if !kindAllows(s.Kind, fRoot, none) {
			s.Root = i % s.ranks
		}
		for _, s.Type = range types {
			for _, memory := range []trial.Memory{g.behind, g.ahead} {
				require.NoError(t, s.runIn(memory))
				g.release()
			}
		}
	}
}
