package plan

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/topo"
	"github.com/gollective/gollective/dtype"
)

func parsedTuning(t testing.TB, text string) *Tuning {
	t.Helper()
	tuning, err := ParseTuning("t.csv", strings.NewReader(text))
	require.NoError(t, err, text)
	return tuning
}

func TestLinesOfATunerFileAreRules(t *testing.T) {
	for _, tc := range []struct {
		line string
		want Rule
	}{
		{"allreduce,0,65536,tree,simple,2,1,-1", Rule{Kind: AllReduce, MaxBytes: 65536, Hosts: 1, Choice: Choice{Tree, Simple, 2}}},
		{"broadcast,32769,4294967295,ring,ll128,-1,-1,-1,1,0", Rule{
			Kind: Broadcast, MinBytes: 32769, MaxBytes: 4294967295, PipeOps: 1, Registered: Unregistered, Choice: Choice{Ring, LL128, 0}}},
		{"AllGather, 1 ,\t2, OneShot ,LL, 3,4,5,6,1", Rule{
			Kind: AllGather, MinBytes: 1, MaxBytes: 2, Hosts: 4, Ranks: 5, PipeOps: 6, Registered: Shared, Choice: Choice{OneShot, LL, 3}}},
		{`"reducescatter","-1","-1","-1","auto","-1","-1","2"`, Rule{Kind: ReduceScatter, MaxBytes: math.MaxInt, Ranks: 2}},
		{"reduce,5,18446744073709551615,auto,-1,-1,-1,-1,-1,-1,TCP", Rule{Kind: Reduce, MinBytes: 5, MaxBytes: math.MaxInt, Transport: "tcp"}},
		{"reduce,5,5,auto,ll,-1,-1,-1,-1,-1,Shm", Rule{Kind: Reduce, MinBytes: 5, MaxBytes: 5, Transport: "shm", Choice: Choice{Protocol: LL}}},
	} {
		text := "# a comment, \"with\" anything\n\n" + TunerHeader() + "\r\n" + tc.line + "\r\n"
		tuning := parsedTuning(t, text)
		tc.want.Line = 4
		require.Equal(t, []Rule{tc.want}, tuning.Rules, tc.line)
		require.Empty(t, tuning.Foreign)
		again := parsedTuning(t, "\ufeff"+tc.want.String())
		again.Rules[0].Line = 4
		require.Equal(t, tuning.Rules, again.Rules, "%v", tc.want)
	}
}

// NCCL has algorithms that are not here, and some collectives of its have algorithms
// that they do not have here.
func TestLinesOfNCCLThatMeanNothingHereAreToldAndHaveNoRules(t *testing.T) {
	tuning := parsedTuning(t, `# as for NCCL
broadcast,0,32768,tree,simple,-1,1,-1
allreduce,0,65536,nvls,simple,2,1,-1,-1,1
allreduce,0,65536,COLLNET_CHAIN,simple,2,1,-1,-1,1
allgather,0,65536,pat,simple,2,1,-1,-1,1
allreduce,0,65536,ring,ll,-1,-1,-1,-1,-1
allreduce,0,65536,twoshot,ll,-1,-1,-1
allreduce,0,65536,ring,direct,-1,-1,-1
`)
	require.Len(t, tuning.Rules, 1)
	require.Equal(t, 6, tuning.Rules[0].Line)
	require.Equal(t, []string{
		"t.csv:2: broadcast has no algorithm tree", "t.csv:3: there is no algorithm nvls here",
		"t.csv:4: there is no algorithm collnet_chain here", "t.csv:5: there is no algorithm pat here",
		"t.csv:7: twoshot has no protocol ll", "t.csv:8: ring has no protocol direct",
	}, tuning.Foreign)
}

func TestMistakesInATunerFileAreFound(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{"allreduce,0,65536,tree,simple,2,1", "t.csv:2: column 7 is the last, accepted: 8 to 11 columns"},
		{"allreduce,0,1,tree,simple,2,1,-1,-1,-1,tcp,", "t.csv:2: column 12 is the last"},
		{"alltoall,0,1,ring,simple,2,1,-1", `t.csv:2: column 1 (collective_type): "alltoall", accepted: broadcast, reduce, allgather, reducescatter, allreduce`},
		{"allreduce,1.5,1,ring,simple,2,1,-1", `t.csv:2: column 2 (min_bytes): "1.5"`},
		{"allreduce,0,64K,ring,simple,2,1,-1", `t.csv:2: column 3 (max_bytes): "64K"`},
		{"allreduce,9,8,ring,simple,2,1,-1", `t.csv:2: column 3 (max_bytes): "8", accepted: min_bytes (9) and more`},
		{"allreduce,0,8,rinq,simple,2,1,-1", `t.csv:2: column 4 (algorithm): "rinq", accepted: auto, ring`},
		{"allreduce,0,8,p2p,simple,2,1,-1", `t.csv:2: column 4 (algorithm): "p2p"`},
		{"allreduce,0,8,ring,ll64,2,1,-1", `t.csv:2: column 5 (protocol): "ll64", accepted: auto, simple, ll, ll128`},
		{"allreduce,0,8,ring,ll,0,1,-1", `t.csv:2: column 6 (channels): "0"`},
		{"allreduce,0,8,ring,ll,1,-2,-1", `t.csv:2: column 7 (nNodes): "-2"`},
		{"allreduce,0,8,ring,ll,1,1,99999999999", `t.csv:2: column 8 (nRanks): "99999999999"`},
		{"allreduce,0,8,ring,ll,1,1,1,x", `t.csv:2: column 9 (numPipeOps): "x"`},
		{"allreduce,0,8,ring,ll,1,1,1,1,2", `t.csv:2: column 10 (regBuff): "2"`},
		{"allreduce,0,8,ring,ll,1,1,1,1,1,wire", `t.csv:2: column 11 (transport): "wire", accepted: inproc, shm, tcp, -1`},
		{",,,,,,,", `t.csv:2: column 1 (collective_type): ""`},
	} {
		_, err := ParseTuning("t.csv", strings.NewReader("# first\n"+tc.line+"\n"))
		require.ErrorContains(t, err, tc.want)
	}
	_, err := ParseTuning("t.csv", strings.NewReader(strings.Repeat("x\n", 100)))
	require.Equal(t, mostMistakes, strings.Count(err.Error(), "t.csv:"), "enough is enough")
	_, err = ParseTuning("t.csv", strings.NewReader("a,b\nallreduce,0,8,ring,ll,1,1,1\nc"))
	require.ErrorContains(t, err, "t.csv:1: ")
	require.ErrorContains(t, err, "t.csv:3: ")
}

func TestATunerFileIsBounded(t *testing.T) {
	line := "allreduce,0,8,ring,ll,1,1,1\n"
	require.Len(t, parsedTuning(t, strings.Repeat(line, mostRules)).Rules, mostRules)
	for text, want := range map[string]string{
		strings.Repeat(line, mostRules+1):          "t.csv:4097: more than 4096 rules",
		strings.Repeat("#\n", mostTuningBytes):     "t.csv: more than 1048576 bytes",
		"#" + strings.Repeat("x", mostTuningBytes): "t.csv: more than 1048576 bytes",
	} {
		_, err := ParseTuning("t.csv", strings.NewReader(text))
		require.ErrorContains(t, err, want)
	}
	broken := errors.New("broken")
	_, err := ParseTuning("t.csv", io.MultiReader(strings.NewReader(line), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "t.csv: ")
}

// Whatever a file says, it is an error that names the place or rules that survive
// being written.
func FuzzParseTuning(f *testing.F) {
	f.Add("allreduce,0,65536,tree,simple,2,1,-1,-1,1\n# x\nbroadcast,1,-1,oneshot,ll,-1,-1,4")
	f.Add(TunerHeader() + "\n\"reduce\",5,18446744073709551615,pat,-1,-1,-1,-1,-1,-1,inproc\r\n")
	f.Add(",,,,,,,\n\x00,\"\"\"")
	f.Fuzz(func(t *testing.T, text string) {
		tuning, err := ParseTuning("t.csv", strings.NewReader(text))
		if err != nil {
			require.Nil(t, tuning)
			require.Contains(t, err.Error(), "t.csv:")
			return
		}
		var lines []string
		for _, r := range tuning.Rules {
			require.LessOrEqual(t, r.MinBytes, r.MaxBytes)
			require.GreaterOrEqual(t, r.MinBytes, 0)
			lines = append(lines, r.String())
		}
		again := parsedTuning(t, strings.Join(lines, "\n"))
		require.Equal(t, tuning.Marks(), again.Marks())
		require.Len(t, again.Rules, len(tuning.Rules))
		for i, r := range again.Rules {
			r.Line = tuning.Rules[i].Line
			require.Equal(t, tuning.Rules[i], r)
		}
		w := tunedWorld(4)
		w.Tuning = tuning
		for _, kind := range append(tunerKinds, Barrier) {
			_, err := Choose(Spec{Kind: kind, Type: dtype.Float32, Count: len(text)}, w)
			require.NoError(t, err, "a file makes no call impossible")
		}
	})
}

func tunedWorld(size int) World {
	return World{Size: size, OrderedStores: true, Cores: 2, MaxChannels: 8,
		Payload: [4]int{0, 1 << 19, 1 << 15, 1 << 16}, P2PPayload: [4]int{0, 1 << 17, 1 << 14, 0}}
}

func TestTheFirstRuleThatFitsDecides(t *testing.T) {
	const file = `
allreduce,100,199,ring,ll,-1,-1,-1
allreduce,100,399,tree,ll128,-1,-1,-1
allreduce,1000,-1,ring,ll,-1,-1,3
allreduce,1000,-1,tree,simple,-1,2,-1
allreduce,1000,-1,ring,simple,-1,-1,-1,-1,-1,tcp
allreduce,1000,-1,oneshot,simple,-1,-1,-1,2,-1
allreduce,1000,1000,oneshot,simple,-1,-1,-1,1,1
allreduce,1000,-1,oneshot,ll128,-1,-1,-1,1,0,shm
allreduce,1000,-1,ring,ll128,-1,-1,-1,-1,-1,inproc
allreduce,0,1,tree,simple,-1,-1,-1
allgather,1000,1000,oneshot,ll128,-1,-1,-1
reducescatter,1000,1000,oneshot,ll,-1,-1,-1
`
	tuning := parsedTuning(t, file)
	for _, tc := range []struct {
		kind  Kind
		count int
		world func(*World)
		want  Choice // zero: the model's
	}{
		{kind: AllReduce, count: 99},
		{kind: AllReduce, count: 100, want: Choice{Ring, LL, 1}},
		{kind: AllReduce, count: 199, want: Choice{Ring, LL, 1}},
		{kind: AllReduce, count: 200, want: Choice{Tree, LL128, 1}},
		{kind: AllReduce, count: 399, want: Choice{Tree, LL128, 1}},
		{kind: AllReduce, count: 400},
		{kind: AllReduce, count: 1000, want: Choice{OneShot, LL128, 1}},
		{kind: AllReduce, count: 1000, want: Choice{OneShot, Simple, 1}, world: func(w *World) { w.Sight = SeesEverything }},
		{kind: AllReduce, count: 1001, want: Choice{Ring, LL128, 1}, world: func(w *World) { w.Sight = SeesEverything }},
		{kind: AllReduce, count: 1001, want: Choice{OneShot, LL128, 1}, world: func(w *World) { w.Sight = SeesSome }},
		{kind: AllReduce, count: 1000, want: Choice{Ring, LL, 1}, world: func(w *World) { w.Size = 3 }},
		{kind: AllReduce, count: 1000, want: Choice{Tree, Simple, 1}, world: func(w *World) { w.Hosts = topo.HostsOf([]int{0, 0, 1, 1}) }},
		{kind: AllReduce, count: 1000, want: Choice{Ring, Simple, 1}, world: func(w *World) { w.Carried = true }},
		{kind: AllReduce, count: 1000, world: func(w *World) { w.Size = 1 }},
		{kind: Barrier, want: Choice{Tree, Simple, 1}},
		{kind: AllGather, count: 250, want: Choice{OneShot, LL128, 1}}, // 1000 bytes of 4 ranks
		{kind: AllGather, count: 1000},
		{kind: ReduceScatter, count: 250, want: Choice{OneShot, LL, 1}},
		{kind: Broadcast, count: 1000},
		{kind: AlltoAll, count: 1000},
	} {
		w := tunedWorld(4)
		if tc.world != nil {
			tc.world(&w)
		}
		s := Spec{Kind: tc.kind, Type: dtype.Uint8, Count: tc.count}
		untuned, err := Choose(s, w)
		require.NoError(t, err)
		w.Tuning = tuning
		got, err := Choose(s, w)
		require.NoError(t, err)
		if tc.want == (Choice{}) {
			tc.want = untuned
		}
		assert.Equal(t, tc.want, got, "%v", s)
		for rank := range w.Size {
			w.Rank = rank
			again, err := Choose(s, w)
			require.NoError(t, err)
			assert.Equal(t, got, again)
		}
	}
}

// What a user forces or allows, what must be reproducible, and what can't run are
// not a file's to decide.
func TestAFileDecidesOnlyWhatIsOpen(t *testing.T) {
	allowed := func(algorithms, protocols string) (a Allowed) {
		require.NoError(t, a.ParseAlgorithms(algorithms))
		require.NoError(t, a.ParseProtocols(protocols))
		return a
	}
	const bytes = 1 << 20
	for _, tc := range []struct {
		about  string
		rule   string // algorithm, protocol, channels
		change func(*World)
		want   Choice // zero: what the model says
	}{
		{"nothing is forced", "ring,ll,3", func(*World) {}, Choice{Ring, LL, 3}},
		{"the model decides the rest", "-1,ll,-1", func(w *World) { w.Force.Algorithm = Tree }, Choice{Tree, LL, 1}},
		{"the same is forced", "tree,ll,-1", func(w *World) { w.Force.Algorithm = Tree }, Choice{Tree, LL, 1}},
		{"another algorithm is forced", "tree,ll,-1", func(w *World) { w.Force.Algorithm = Ring }, Choice{}},
		{"another protocol is forced", "tree,ll,-1", func(w *World) { w.Force.Protocol = LL128 }, Choice{}},
		{"channels are forced", "tree,ll,2", func(w *World) { w.Force.Channels = 4 }, Choice{Tree, LL, 4}},
		{"there are fewer channels", "tree,ll,7", func(w *World) { w.MaxChannels = 2 }, Choice{Tree, LL, 2}},
		{"the algorithm is not allowed", "tree,ll,-1", func(w *World) { w.Allowed = allowed("ring", "ll,simple,ll128") }, Choice{}},
		{"the protocol is not allowed", "tree,ll,-1", func(w *World) { w.Allowed = allowed("ring,tree", "simple") }, Choice{}},
		{"both are allowed", "tree,ll,-1", func(w *World) { w.Allowed = allowed("tree", "ll") }, Choice{Tree, LL, 1}},
		{"ranks don't see each other", "twoshot,direct,-1", func(*World) {}, Choice{}},
		{"ranks see each other", "twoshot,direct,-1", func(w *World) { w.Sight = SeesEverything }, Choice{TwoShot, Direct, 1}},
		{"the call is too large to be shown", "oneshot,direct,-1", func(w *World) { w.Sight, w.DeskPayload = SeesEverything, 1<<16 }, Choice{}},
		{"the call can be shown", "oneshot,direct,-1", func(w *World) { w.Sight, w.DeskPayload = SeesEverything, 1<<21 }, Choice{OneShot, Direct, 1}},
		{"tree can't use what is seen", "tree,direct,-1", func(w *World) { w.Sight = SeesEverything }, Choice{}},
		{"results are reproducible", "tree,ll,-1", func(w *World) { w.Reproducible = true }, Choice{}},
		{"results are reproducible by this", "oneshot,ll,-1", func(w *World) { w.Reproducible = true }, Choice{OneShot, LL, 1}},
		{"stores are not ordered", "tree,ll,-1", func(w *World) { w.OrderedStores = false }, Choice{}},
		{"an element does not fit", "ring,ll,-1", func(w *World) { w.Payload[LL] = 2 }, Choice{}},
	} {
		w := tunedWorld(4)
		tc.change(&w)
		s := Spec{Kind: AllReduce, Type: dtype.Float32, Count: bytes / 4}
		untuned, err := Choose(s, w)
		require.NoError(t, err, tc.about)
		if tc.want == (Choice{}) {
			tc.want = untuned
		}
		w.Tuning = parsedTuning(t, "allreduce,0,-1,"+tc.rule+",-1,-1")
		got, err := Choose(s, w)
		require.NoError(t, err, tc.about)
		assert.Equal(t, tc.want, got, tc.about)
		if tc.want != untuned {
			p, err := Build(s, w)
			require.NoError(t, err)
			assert.Equal(t, tc.want, p.Choice)
		}
	}
}
