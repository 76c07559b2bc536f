package collective_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective"
	"github.com/gollective/gollective/collective/internal/pairwise"
	"github.com/gollective/gollective/collective/internal/trial"
	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
)

// Variables that draw more from the tables than a quick `go test` does:
//
//	GOLLECTIVE_TEST_SAMPLE=N  N random settings instead of 300; 5000 take two minutes
//	GOLLECTIVE_TEST_SEED=S    the seed of the sample; otherwise a new one each
//	                          time, which is printed

// The factors of a call and of a communicator, in the order of a row.
const (
	fKind = iota
	fRanks
	fCount
	fType
	fOp
	fPlace
	fRoot
	fSendOffset
	fRecvOffset
	fAlgorithm
	fProtocol
	fChannels
	fFIFO
	fNode
	fWait
	fForm
	factorsCount
)

const (
	none      = 0 // of fOp and fRoot: the kind has none
	manyLoops = -1
)

var (
	// A Send stands for a group in which every rank sends and receives.
	tableKinds = []plan.Kind{
		plan.AllReduce, plan.Reduce, plan.Broadcast, plan.AllGather, plan.ReduceScatter,
		plan.AlltoAll, plan.AlltoAllv, plan.Gather, plan.Scatter, plan.Send, plan.Barrier,
	}
	tableCounts = []int{0, 1, 2, 3, 7, 15, 16, 17, 119, 120, 121, 1023, 1024, 1025, 65537, manyLoops}
	tableWaits  = []spin.Policy{spin.Adaptive, spin.Spin, spin.Yield, spin.Block}
	tableFIFOs  = []collective.Config{
		{BuffSize: 512, LLBuffSize: 512, LL128BuffSize: 1024, P2PChunkSize: 64},
		{BuffSize: 4000, LLBuffSize: 1500, LL128BuffSize: 3000, P2PChunkSize: 200},
		{BuffSize: 16 << 10, LLBuffSize: 16 << 10, LL128BuffSize: 16 << 10, P2PChunkSize: 1 << 10},
		{},
	}
	tableLevels = [factorsCount]int{
		fKind: len(tableKinds), fRanks: 17, fCount: len(tableCounts), fType: len(dtype.All()),
		fOp: 1 + 6, fPlace: 2, fRoot: 1 + 3, fSendOffset: 16, fRecvOffset: 16,
		fAlgorithm: len(plan.Algorithms()), fProtocol: 1 + 4, fChannels: 1 + 4, fFIFO: len(tableFIFOs), fNode: 5,
		fWait: len(tableWaits), fForm: int(trial.FormsCount),
	}
)

const (
	tinyFIFOs    = 0
	defaultFIFOs = 3
)

// tableAllows excludes what has no meaning for a kind, and what would only be slow.
func tableAllows(f, a, g, b int) bool {
	if f == fKind {
		return kindAllows(tableKinds[a], g, b)
	}
	count := func(level int) int { return tableCounts[level] }
	switch [2]int{f, g} {
	case [2]int{fRanks, fFIFO}: // 17 ranks with FIFOs of 4 MiB take gigabytes
		return b != defaultFIFOs || a < 6
	case [2]int{fRanks, fWait}: // who spins keeps the others from working
		return tableWaits[b] != spin.Spin || a < 4
	case [2]int{fCount, fFIFO}:
		return (count(a) != 65537 || b != tinyFIFOs) && (count(a) != manyLoops || b != defaultFIFOs)
	case [2]int{fCount, fWait}:
		return count(a) != 65537 || tableWaits[b] != spin.Spin
	}
	return true
}

func kindAllows(kind plan.Kind, g, b int) bool {
	switch g {
	case fCount:
		return kind != plan.Barrier || b == 0
	case fType:
		return kind != plan.Barrier || dtype.Type(b) == dtype.Uint8
	case fOp:
		reduces := kind == plan.AllReduce || kind == plan.Reduce || kind == plan.ReduceScatter
		return reduces == (b != none)
	case fPlace:
		return b == 0 || kind <= plan.ReduceScatter || kind == plan.Gather || kind == plan.Scatter
	case fRoot:
		rooted := kind == plan.Reduce || kind == plan.Broadcast || kind == plan.Gather ||
			kind == plan.Scatter || kind == plan.Send
		return rooted == (b != none)
	}
	return true
}

// setting is a row of the table made concrete.
type setting struct {
	ranks  int
	config collective.Config
	form   trial.Form
	trial.Case
}

func (s setting) String() string {
	c := s.config
	return fmt.Sprintf("%v over %d ranks, %v %v, count %d, root %d, in place %v, offsets %d and %d; "+
		"%v %v %d channels, FIFOs %d %d %d %d, %d ranks per node, %v, %v, %s %s %s, seed %d",
		s.Kind, s.ranks, s.Type, s.Op, s.Count, s.Root, s.InPlace, s.SendOffset, s.RecvOffset,
		c.Algorithm, c.Protocol, c.Channels, c.BuffSize, c.LLBuffSize, c.LL128BuffSize, c.P2PChunkSize,
		c.RanksPerNode, c.Wait, s.form, c.Transport, c.Proxy, c.HostID, s.Seed)
}

func settingOf(row []int, seed uint64) setting {
	s := setting{ranks: row[fRanks] + 1, config: tableFIFOs[row[fFIFO]], form: trial.Form(row[fForm])}
	s.config.Algorithm = plan.Algorithms()[row[fAlgorithm]]
	s.config.Protocol = plan.Protocol(row[fProtocol])
	s.config.Channels = row[fChannels]
	s.config.RanksPerNode = row[fNode]
	s.config.Wait = tableWaits[row[fWait]]
	s.config.Timeout = time.Minute
	s.Case = trial.Case{
		Kind: tableKinds[row[fKind]], Type: dtype.Type(row[fType]), Count: tableCounts[row[fCount]],
		InPlace: row[fPlace] == 1, SendOffset: row[fSendOffset], RecvOffset: row[fRecvOffset], Seed: seed,
	}
	if row[fOp] != none {
		s.Op = reduce.Op(row[fOp] - 1)
	}
	if row[fRoot] != none {
		s.Root = []int{0, s.ranks / 2, s.ranks - 1}[row[fRoot]-1]
	}
	if s.Count == manyLoops {
		s.Count = s.loops(3)
	}
	return s
}

// loops is a count that takes a few loops of every channel, with a ragged end.
func (s setting) loops(loops int) int {
	step := s.config.BuffSize / 8
	switch s.config.Protocol {
	case plan.LL:
		step = s.config.LLBuffSize / 16
	case plan.LL128:
		step = s.config.LL128BuffSize / 8
	}
	if s.Kind == plan.AllReduce {
		step *= s.ranks
	}
	return loops*4*step*max(2, s.config.Channels)/s.Type.Size() + 13
}

// run makes the communicator, issues the call twice, and checks all memory.
func (s setting) run() error { return s.runIn(trial.Heap) }

func (s setting) runIn(memory trial.Memory) error {
	comms, err := collective.InitAllConfig(s.ranks, s.config)
	if err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	defer func() {
		for _, c := range comms {
			c.Close()
		}
	}()
	t := trial.New(s.Case, s.ranks, memory)
	for range 2 {
		if err = trial.Run(comms, s.form, t); err == nil {
			err = t.Check()
		}
		if err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		t.Restore()
	}
	return nil
}

func TestEveryPairOfSettingsGivesWhatASequentialLoopGives(t *testing.T) {
	rows := pairwise.Cover(tableLevels[:], tableAllows)
	every := 1
	if underRace && os.Getenv("GOLLECTIVE_TEST_FULL") == "" {
		every = 5 // the detector makes each some ten times as slow
	}
	t.Logf("%d settings, of which every %d. is run", len(rows), every)
	for i := 0; i < len(rows); i += every {
		require.NoError(t, settingOf(rows[i], uint64(i)).run())
	}
}

func TestRandomSettingsGiveWhatASequentialLoopGives(t *testing.T) {
	rng, _ := sampleSeed(t)
	size := 300
	if underRace {
		size = 60
	}
	for range sampleSize(t, size) {
		require.NoError(t, settingOf(randomRow(rng), rng.Uint64()).run())
	}
}

func TestBuffersLongerThanStatedAreLeftAloneBehindTheEnd(t *testing.T) {
	const ranks, count = 3, 33
	err := collective.Run(ranks, func(c *collective.Comm) error {
		memory := make([]byte, 2*4*count)
		for i := range memory {
			memory[i] = 0xa5
		}
		err := c.Do(t.Context(), collective.Call{
			Kind: plan.AllReduce, Type: dtype.Int32, Op: collective.Sum, Count: count,
			Send: make([]byte, 5*count), Recv: memory,
		})
		assert.Equal(t, make([]byte, 4*count), memory[:4*count])
		for _, b := range memory[4*count:] {
			assert.Equal(t, byte(0xa5), b)
		}
		return err
	})
	require.NoError(t, err)
}

// randomRow draws until a row is allowed.
func randomRow(rng *rand.Rand) []int {
	row := make([]int, factorsCount)
	for {
		for f, n := range tableLevels {
			row[f] = rng.IntN(n)
		}
		if rowAllowed(row) {
			return row
		}
	}
}

func rowAllowed(row []int) bool {
	for f := range row {
		for g := f + 1; g < len(row); g++ {
			if !tableAllows(f, row[f], g, row[g]) {
				return false
			}
		}
	}
	return true
}

// sampleSeed is the random source of a test, and its seed, which it prints.
func sampleSeed(t *testing.T) (*rand.Rand, uint64) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("GOLLECTIVE_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("GOLLECTIVE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

// sampleSize is how many random settings a test draws.
func sampleSize(t *testing.T, usual int) int {
	text := os.Getenv("GOLLECTIVE_TEST_SAMPLE")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
