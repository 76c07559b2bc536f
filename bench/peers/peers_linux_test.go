package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary what the tool starts as ranks.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == rankCommand {
		main()
		return
	}
	os.Exit(m.Run())
}

func tiny(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parseOptions(append([]string{"-sizes", "4,64K", "-pool", "512K", "-rounds", "2", "-seconds", "0.01"}, args...), t.Output())
	require.NoError(t, err)
	return o
}

// everything requires figures of every round for every job of a contender.
func everything(t *testing.T, r *report, g group, id string) {
	t.Helper()
	for _, bytes := range r.Sizes {
		for _, kind := range r.Buffers {
			times := r.times(g, id, r.job(g, kind, bytes))
			require.Len(t, times, r.Rounds, "%s, %s, %s, %d bytes", id, groupText(g), kind, bytes)
			require.NotContains(t, times, 0.0, "%s, %s, %s, %d bytes", id, groupText(g), kind, bytes)
		}
	}
}

func TestGollectiveBesideTheInstalledPeers(t *testing.T) {
	o := tiny(t, "-ranks", "2", "-peers", "openmpi,mpich,gloo,gollective-processes")
	var errs bytes.Buffer
	r, err := run(context.Background(), o, &errs)
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	took := 0
	for _, g := range r.Groups {
		everything(t, r, g, "gollective-processes")
		for _, c := range r.in(g, peer) {
			took++
			if !slices.ContainsFunc(r.Unfinished, func(n note) bool { return n.Contender == c.name && *n.Group == g }) {
				everything(t, r, g, c.id)
			}
		}
	}
	for _, n := range r.Missing {
		require.Contains(t, errs.String(), n.Contender+" is left out: "+n.Text)
		require.Contains(t, r.markdown(), n.Contender+" did not take part")
	}
	if took == 0 {
		t.Skipf("no peer is installed: %v", r.Missing)
	}
	text := r.markdown()
	require.Contains(t, text, "| shared memory, 2 ranks | gollective |")
	require.Contains(t, text, "| loopback TCP, 2 ranks | gollective |")
}

func TestGollectiveInAllItsForms(t *testing.T) {
	r, err := run(context.Background(), tiny(t, "-ranks", "2,3", "-transports", "shm", "-peers", "gollective", "-rounds", "1"), t.Output())
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	for _, g := range r.Groups {
		require.Len(t, r.in(g, ours), 3)
		for _, c := range r.in(g, ours) {
			everything(t, r, g, c.id)
		}
	}
}

func needsGCC(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc")
	}
}

func TestTheMachinesLimits(t *testing.T) {
	needsGCC(t)
	r, err := run(context.Background(), tiny(t, "-ranks", "2,3", "-peers", "limits", "-rounds", "1"), t.Output())
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	for _, g := range r.Groups {
		for _, c := range r.in(g, limit) {
			if c.ping {
				require.NotEmpty(t, positive(r.times(g, c.id, job{4, 1})), c.id)
			} else {
				everything(t, r, g, c.id)
			}
		}
	}
	require.Len(t, r.in(machine, limit), 6)
}

func TestNobodyIsFoundWithoutAPath(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r, err := run(context.Background(), tiny(t, "-ranks", "2", "-transports", "shm,tcp", "-rounds", "1", "-sizes", "4"), t.Output())
	require.NoError(t, err, "gollective needs nobody")
	var missing []string
	for _, n := range r.Missing {
		missing = append(missing, n.Contender)
		require.Contains(t, n.Text, "not installed")
	}
	require.Equal(t, []string{"gloo", "limits", "mpich", "openmpi"}, missing)
	require.Equal(t, []group{{overShm, 2}, {overTCP, 2}}, r.Groups)

	_, err = run(context.Background(), tiny(t, "-peers", "mpich"), t.Output())
	require.ErrorContains(t, err, "nobody takes part: mpich: not installed")
}

// What a program of contest.h gets wrong is noticed, and ends its part.
func TestProgramsThatAreWrongAreNoticed(t *testing.T) {
	needsGCC(t)
	w, err := newWorkshop(context.Background())
	require.NoError(t, err)
	defer w.close()
	source, err := filepath.Abs(filepath.Join("testdata", "faulty.c"))
	require.NoError(t, err)
	path, err := w.compile("faulty", "gcc", source, "-I"+w.dir)
	require.NoError(t, err)
	jobs := []job{{4, 1}, {4108, 3}}
	m := &matches{shop: w}
	for _, tc := range []struct{ variable, text string }{
		{"", ""},
		{"FAULTY=1", "1 wrong elements in results of 4 bytes"},
		{"LAZY=1", "1027 wrong elements in results of 4108 bytes"},
	} {
		command := append([]string{path}, setting{seconds: 0.01, cores: tiny(t).cores}.arguments()...)
		heard := &listener{}
		require.NoError(t, m.launch(context.Background(), launch{command, 1, func(int) []string { return []string{tc.variable} }}, jobs, heard))
		_, err := heard.told(jobs)
		if tc.text == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, tc.text)
		}
	}
}

// A contender that fails is named, and the others go on.
func TestWhoFailsTwiceIsNamedAndNotAskedAgain(t *testing.T) {
	started := 0
	broken := &contender{
		id: "broken", family: "broken", name: "Broken", build: buildNothing,
		start: func(program, setting) (launch, func(), error) {
			started++
			return launch{[]string{"sh", "-c", "echo first; echo 'an error, the reason' >&2; exit 3"}, 1, func(int) []string { return nil }}, nil, nil
		},
	}
	o := tiny(t)
	w, err := newWorkshop(context.Background())
	require.NoError(t, err)
	defer w.close()
	g := group{overShm, 2}
	m := &matches{report: newReport(o), ctx: context.Background(), errs: t.Output(), shop: w, entrants: map[group][]*contender{g: {broken}}, patience: basePatience}
	for range 3 {
		m.round(0, g)
	}
	require.Equal(t, 2, started, "once may be an accident")
	require.Len(t, m.Failures, 2)
	require.Equal(t, "Broken", m.Failures[0].Contender)
	require.Contains(t, m.Failures[0].Text, "exit status 3")
	require.Contains(t, m.Failures[0].Text, "an error, the reason")
}

// What a slow contender has told before its time was over counts. It is asked once more
// where it was not known to be slow.
func TestWhoTakesTooLongIsEnded(t *testing.T) {
	slow := &contender{
		id: "slow", family: "slow", name: "Slow", build: buildNothing,
		start: func(program, setting) (launch, func(), error) {
			return launch{[]string{"sh", "-c", "echo result bytes=4 buffers=1 operations=1 cpu=0 wrong=0 seconds=1; exec sleep 600"}, 1, func(int) []string { return nil }}, nil, nil
		},
	}
	w, err := newWorkshop(context.Background())
	require.NoError(t, err)
	defer w.close()
	g := group{overShm, 2}
	m := &matches{report: newReport(tiny(t)), ctx: context.Background(), errs: t.Output(), shop: w, entrants: map[group][]*contender{g: {slow}}, patience: 2 * time.Second}
	m.round(0, g)
	require.Len(t, m.entrants[g], 1)
	slow.brief = func(group, int) bool { return true }
	m.Unfinished = nil
	m.round(0, g)
	require.Empty(t, m.Failures)
	require.Len(t, m.Unfinished, 1)
	require.Contains(t, m.Unfinished[0].Text, "too slow: 1 of 4 jobs")
	require.Equal(t, []float64{1, 0}, m.times(g, "slow", job{4, 1}))
	require.Empty(t, m.entrants[g])
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	time.AfterFunc(200*time.Millisecond, cancel)
	_, err := run(ctx, tiny(t, "-ranks", "2", "-transports", "shm", "-peers", "gollective-processes", "-rounds", "1000"), t.Output())
	require.Error(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCommandsAreShownAsAReaderCouldGiveThem(t *testing.T) {
	l := launch{
		[]string{"mpirun", "-n", "2", "/tmp/x/mpi-program", "/tmp/run-1/rendezvous", "0.1", "0,1"}, 1,
		func(int) []string { return []string{"A=b c", "GOLLECTIVE_COMM_ID=secret"} },
	}
	require.Equal(t, "'A=b c' mpirun -n 2 mpi-program DIR/rendezvous 0.1 0,1 BYTES:BUFFERS...", l.text("/tmp/run-1"))
}

func TestComplaintsAreTheLineThatSaysMost(t *testing.T) {
	require.Equal(t, "x.c:1: fatal error: mpi.h: No such file or directory",
		complaint("In file included\nx.c:1: fatal error: mpi.h: No such file or directory\n  1 | #include\ncompilation terminated.\n"))
	require.Equal(t, "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
		complaint("peers: rank 0 (pid 1) failed first: exit status 9\n====\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"))
	require.Equal(t, "last", complaint("first\nlast\n\n"))
	require.Empty(t, complaint(""))
}

func TestVersionsOfLaunchers(t *testing.T) {
	require.Equal(t, 4, majorOf("mpirun.openmpi (OpenRTE) 4.1.4\n"))
	require.Equal(t, 5, majorOf("mpirun (Open MPI) 5.0.3"))
	require.Zero(t, majorOf("no number"))
}

func TestOpenMPIsSharedMemoryHasTwoNames(t *testing.T) {
	for major, want := range map[int]string{4: "self,vader", 5: "self,sm", 0: "self,vader"} {
		l, _, err := startOpenMPI(program{major: major}, setting{group: group{overShm, 2}})
		require.NoError(t, err)
		require.True(t, slices.Contains(l.command, want), strings.Join(l.command, " "))
	}
}

func TestBusyTimeOfTheHost(t *testing.T) {
	require.Equal(t, 35*10*time.Millisecond, busyTime([]byte("cpu  1 2 4 1000 2000 8 16 4 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n")))
	require.Less(t, busyTime([]byte("intr 1 2 3")), time.Duration(0))
	require.Less(t, busyTime(nil), time.Duration(0))
	b := newBusy()
	require.GreaterOrEqual(t, b.foreign(), 0.0)
}

func TestPinnedRanksRunWhereTheyShould(t *testing.T) {
	o := tiny(t)
	core := o.cores[len(o.cores)-1]
	self, err := os.Executable()
	require.NoError(t, err)
	args := append([]string{rankCommand, inGoroutines, "2"}, setting{seconds: 0.002, cores: []int{core}}.arguments()...)
	c := exec.Command(self, append(args, "4:1")...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, t.Output()
	require.NoError(t, c.Run())
	require.Contains(t, out.String(), "result bytes=4 buffers=1")
}

func TestReferencePlansAreForced(t *testing.T) {
	r, err := run(context.Background(), tiny(t, "-ranks", "2", "-transports", "shm", "-sizes", "1M", "-peers", "gollective-ring,gollective-tree,gollective-ring-ll128,gollective-ring-ll", "-rounds", "1"), t.Output())
	require.NoError(t, err)
	require.Empty(t, r.Failures)
	g := group{overShm, 2}
	require.Len(t, r.in(g, reference), 4)
	for _, c := range r.in(g, reference) {
		everything(t, r, g, c.id)
	}
	text := r.markdown()
	require.Contains(t, text, "GOLLECTIVE_ALGO=ring GOLLECTIVE_PROTO=ll128 ")
	require.Contains(t, text, "GOLLECTIVE_ALGO=tree GOLLECTIVE_PROTO=simple ")
}

// Who is known to be slow somewhere has little more than its time there.
func TestBriefContendersHaveLessTime(t *testing.T) {
	s := setting{group: group{overTCP, 2}, seconds: 0.1, cores: []int{0, 1}, jobs: make([]job, 10)}
	mpich, openmpi, gloo := contenderOf("mpich"), contenderOf("openmpi"), contenderOf("gloo-poll")
	require.Equal(t, 6*time.Second, s.patience(mpich, basePatience))
	require.Equal(t, 25*time.Second, s.patience(openmpi, basePatience))
	require.Equal(t, 25*time.Second, s.patience(gloo, basePatience))
	s.Ranks = 4
	require.Equal(t, 6*time.Second, s.patience(gloo, basePatience))
	require.Equal(t, 25*time.Second, s.patience(openmpi, basePatience))
}
