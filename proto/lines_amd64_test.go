//go:build !purego && !race

package proto

import (
	"bytes"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/transport"
)

// twins pairs what a format does with its specification.
var twins = []struct {
	lineFormat
	packGo   func(lines, src []byte, flag uint64)
	unpackGo func(dst, lines []byte, flag uint64) int
	block    int // payload bytes that one assembly call handles
}{
	{llFormat{}, packLLGo, unpackLLGo, 8 * blockLinesLL},
	{ll128Format{}, packLL128Go, unpackLL128Go, ll128Data * blockLinesLL128},
}

// firstLines is how many places of a cache line there are at which lines may begin;
// the first data line of LL lies behind the header's.
const firstLines = cacheLine / 16

func needAVX2(t *testing.T) {
	t.Helper()
	if !hasAVX2 {
		t.Skip("the processor has no AVX2")
	}
}

// withoutAVX2 is the choice made on older processors.
func withoutAVX2(t *testing.T) {
	t.Helper()
	before := hasAVX2
	hasAVX2 = false
	t.Cleanup(func() { hasAVX2 = before })
}

func TestAssemblyPacksWhatItsTwinPacks(t *testing.T) {
	needAVX2(t)
	seed, _ := seedAndRounds(t)
	random := rand.New(rand.NewPCG(seed, 21))
	for _, f := range twins {
		lengths := []int{f.block - 1, f.block, f.block + 1, 2*f.block + 3*f.payload() + 5}
		for n := range 301 {
			lengths = append(lengths, n)
		}
		for _, n := range lengths {
			size := (linesOf(f, n) + 1 + firstLines) * f.lineBytes()
			want, got := slotMemory(t, size), slotMemory(t, size)
			for offset := range 32 {
				if n > 300 && offset > 1 {
					break
				}
				for i := range want {
					want[i], got[i] = 0xee, 0xee
				}
				src := randomBytes(random, offset+n)[offset:]
				flag := f.flag(random.Uint64())
				first := random.IntN(firstLines) * f.lineBytes()
				f.packGo(want[first:], src, flag)
				f.pack(got[first:], src, flag)
				require.Equal(t, want, got, "%T: %d bytes at %d, from %d on", f.lineFormat, n, offset, first)
			}
		}
	}
}

// Some line is missing, or one of its words is of another step.
func TestAssemblyUnpacksWhatItsTwinUnpacks(t *testing.T) {
	needAVX2(t)
	seed, _ := seedAndRounds(t)
	random := rand.New(rand.NewPCG(seed, 22))
	for _, f := range twins {
		lengths := []int{f.block - 1, f.block, f.block + 1, 2*f.block + 3*f.payload() + 5}
		for n := range 301 {
			lengths = append(lengths, n)
		}
		for _, n := range lengths {
			count := linesOf(f, n)
			memory := slotMemory(t, (max(count, 1)+firstLines)*f.lineBytes())
			for missing := -1; missing < min(count, 40); missing++ {
				lines := memory[random.IntN(firstLines)*f.lineBytes():]
				words := transport.Words(lines)
				flag := f.flag(random.Uint64())
				f.packGo(lines, randomBytes(random, n), flag)
				if missing >= 0 {
					at := missing
					if n > 300 {
						at = random.IntN(count)
					}
					perLine := f.lineBytes() / 8
					word := &words[at*perLine+perLine-1]
					if f.payload() == 8 && random.IntN(2) == 0 {
						word = &words[at*perLine] // the line's first flag
					}
					word.Store(word.Load() ^ 1<<(32+random.IntN(32)))
				}
				want, got := newGuarded(make([]byte, n)), newGuarded(make([]byte, n+32))
				offset := random.IntN(32)
				before := bytes.Clone(memory)
				done := f.unpackGo(want.bytes, lines, flag)
				require.Equal(t, done, f.unpack(got.bytes[offset:offset+n], lines, flag), "%T: %d bytes, line %d missing", f.lineFormat, n, missing)
				require.Equal(t, missing < 0, done == n)
				expected := make([]byte, n+32)
				copy(expected[offset:], want.bytes)
				require.NoError(t, got.compare(expected), "%T: %d bytes at %d, line %d missing", f.lineFormat, n, offset, missing)
				require.True(t, bytes.Equal(before, memory), "%T: %d bytes, line %d missing: lines have changed", f.lineFormat, n, missing)
			}
		}
	}
}

func TestPrimitivesAgreeWithTheOracleWithoutAVX2(t *testing.T) {
	withoutAVX2(t)
	TestUnpackUndoesPackAtEveryLength(t)
	TestPrimitivesAgreeWithTheOracle(t)
}

// Blocks and lines of any size and place: what is copied is what was there, what is
// claimed stays as it is, and nothing around either is written.
func TestClaimingChangesNothing(t *testing.T) {
	needAVX2(t)
	seed, _ := seedAndRounds(t)
	random := rand.New(rand.NewPCG(seed, 24))
	lengths := []int{claimBytes - 1, claimBytes, claimBytes + 1, 3*claimBytes + 100}
	for n := range 301 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		memory := newGuarded(randomBytes(random, n))
		before := bytes.Clone(memory.bytes)
		claim(memory.bytes)
		require.NoError(t, memory.compare(before), "%d bytes", n)
		for offset := range 32 {
			if n > 300 && offset > 1 {
				break
			}
			dst := newGuarded(make([]byte, n+32))
			copyClaiming(dst.bytes[offset:], memory.bytes)
			expected := make([]byte, n+32)
			copy(expected[offset:], before)
			require.NoError(t, dst.compare(expected), "%d bytes to %d", n, offset)
			require.NoError(t, memory.compare(before), "%d bytes to %d", n, offset)
		}
	}
}

func TestAssemblyPublishesWhatItsTwinPublishes(t *testing.T) {
	var words [3]atomic.Uint64
	for _, value := range []uint64{0, 1, 1<<32 - 1, 1 << 63, math.MaxUint64} {
		publishWord(&words[1], value)
		require.Equal(t, value, words[1].Load())
		publishGo(&words[1], ^value)
		require.Equal(t, ^value, words[1].Load())
		require.Zero(t, words[0].Load()|words[2].Load(), "what lies next to it")
	}
}
