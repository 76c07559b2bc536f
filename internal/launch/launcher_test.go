package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The real launchers start this test binary again; this variable tells it what
// to do then.
const childVar = "LAUNCH_TEST_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(childVar); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(m.Run())
}

// report is what a child prints, one line of JSON with a mark before it.
type report struct {
	Source               string
	Rank, Size           int
	LocalRank, LocalSize int
	Kind                 Kind
	SameHost             bool
	Addresses            []string
	Strength             Strength
	Notes                []string
	Met                  []string // what rank 0 told, then what rank 0 heard from each rank
	Failed               string
}

const reportMark = "LAUNCH-REPORT "

func child(mode string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	world, err := Find(ctx, Explicit{}, os.LookupEnv)
	r := report{
		Source: world.Source, Rank: world.Rank, Size: world.Size, LocalRank: world.LocalRank, LocalSize: world.LocalSize,
		Kind: world.Rendezvous.Kind, SameHost: world.Rendezvous.SameHost, Addresses: world.Rendezvous.Addresses,
		Strength: world.Rendezvous.Key.Strength, Notes: world.Notes,
	}
	if err == nil {
		r.Met, err = meet(ctx, mode, world)
	}
	if err != nil {
		r.Failed = err.Error()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return 1
	}
	// One write: the launcher merges the lines of all ranks.
	os.Stdout.Write(append(append([]byte(reportMark), line...), '\n'))
	return 0
}

func meet(ctx context.Context, mode string, world World) ([]string, error) {
	switch {
	case mode == "who":
		return nil, nil
	case mode == "absent" && world.Rank == 1:
		return nil, nil
	case mode == "absent":
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		return meetInStore(short, mode, world)
	case world.Rendezvous.Kind == Store:
		return meetInStore(ctx, mode, world)
	case world.Rendezvous.Kind == Address:
		return meetAtAddress(ctx, world)
	}
	return nil, nil
}

// meetInStore publishes twice in one session, then lets every rank put and rank
// 0 get.
func meetInStore(ctx context.Context, mode string, world World) ([]string, error) {
	store, err := world.Rendezvous.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	var met []string
	for _, key := range []string{"first", "second"} {
		text, err := Publish(ctx, store, world.Rank, key, func() (string, error) {
			if mode == "failure" {
				return "", errors.New("no port to be had")
			}
			return "the " + key + " = of\nrank 0", nil
		})
		if err != nil {
			return nil, err
		}
		met = append(met, text)
	}
	if err := store.Put(ctx, fmt.Sprintf("rank%d", world.Rank), fmt.Sprintf("value=of=%d==", world.Rank)); err != nil {
		return nil, err
	}
	if err := store.Barrier(ctx); err != nil {
		return nil, err
	}
	for rank := 0; world.Rank == 0 && rank < world.Size; rank++ {
		text, err := store.Get(ctx, fmt.Sprintf("rank%d", rank))
		if err != nil {
			return nil, err
		}
		met = append(met, text)
	}
	if _, err := store.Get(ctx, "nobody"); !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("get of a key nobody put: %v", err)
	}
	return met, store.Close()
}

// meetAtAddress: rank 0 listens where all were told, the others come and show
// the key.
func meetAtAddress(ctx context.Context, world World) ([]string, error) {
	lookup := func(ctx context.Context, network, host string) ([]netip.Addr, error) {
		if strings.HasPrefix(host, testNodes) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		return net.DefaultResolver.LookupNetIP(ctx, network, host)
	}
	places, err := world.Rendezvous.resolve(ctx, lookup)
	if err != nil {
		return nil, err
	}
	hello := fmt.Sprintf("%x", world.Rendezvous.Key.Secret[:])
	if world.Rank == 0 {
		return listenAt(places[0], hello, world.Size)
	}
	for {
		conn, err := net.Dial("tcp", places[0].String())
		if err == nil {
			defer conn.Close()
			fmt.Fprintf(conn, "%s %d", hello, world.Rank)
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func listenAt(place netip.AddrPort, hello string, size int) (met []string, err error) {
	listener, err := net.Listen("tcp", place.String())
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	for len(met) < size-1 {
		listener.(*net.TCPListener).SetDeadline(time.Now().Add(15 * time.Second))
		conn, err := listener.Accept()
		if err != nil {
			return met, err
		}
		text, err := io.ReadAll(conn)
		conn.Close()
		if err != nil {
			return met, err
		}
		rank, ok := strings.CutPrefix(string(text), hello+" ")
		if !ok {
			return met, errors.New("a rank has another key")
		}
		met = append(met, rank)
	}
	slices.Sort(met)
	return met, nil
}

const testNodes = "gnode"

// launched runs command with this test binary as its last word and returns the
// ranks' reports in the order of their ranks.
func launched(t *testing.T, mode string, extraEnv []string, command ...string) []report {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return launchedAs(t, mode, extraEnv, append(command, self)...)
}

func launchedAs(t *testing.T, mode string, extraEnv []string, command ...string) []report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(append(cleanEnvironment(), childVar+"="+mode), extraEnv...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	runErr := cmd.Run()
	var reports []report
	for line := range strings.Lines(out.String()) {
		if text, ok := strings.CutPrefix(line, reportMark); ok {
			var r report
			require.NoError(t, json.Unmarshal([]byte(text), &r), "%s", line)
			reports = append(reports, r)
		}
	}
	if mode != "absent" { // there the launcher sees a failed job
		require.NoError(t, runErr, "%s\nstdout:\n%s\nstderr:\n%s", command, &out, &errs)
	}
	slices.SortFunc(reports, func(a, b report) int { return a.Rank - b.Rank })
	return reports
}

// cleanEnvironment is this process's without any launcher's variables, should
// the tests themselves run under one.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		for _, prefix := range []string{"OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM", "GOLLECTIVE_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "JOB_COMPLETION"} {
			if strings.HasPrefix(v, prefix) {
				return true
			}
		}
		return false
	})
}

func program(t *testing.T, debianPackage string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed (Debian: apt-get install %s)", strings.Join(names, " or "), debianPackage)
	return ""
}

// requireWorld checks what every launcher on one host must lead to.
func requireWorld(t *testing.T, reports []report, source string, size int) {
	t.Helper()
	require.Len(t, reports, size)
	for rank, r := range reports {
		require.Empty(t, r.Failed, "rank %d", rank)
		require.Equal(t, source, r.Source)
		require.Equal(t, rank, r.Rank)
		require.Equal(t, size, r.Size)
	}
}

func requireOneHost(t *testing.T, reports []report) {
	t.Helper()
	var local []int
	for _, r := range reports {
		require.Equal(t, len(reports), r.LocalSize)
		require.True(t, r.SameHost)
		local = append(local, r.LocalRank)
	}
	slices.Sort(local)
	for i, l := range local {
		require.Equal(t, i, l, "every local rank once")
	}
}

func requireMetInStore(t *testing.T, reports []report) {
	t.Helper()
	for rank, r := range reports {
		want := []string{"the first = of\nrank 0", "the second = of\nrank 0"}
		for i := 0; rank == 0 && i < len(reports); i++ {
			want = append(want, fmt.Sprintf("value=of=%d==", i))
		}
		require.Equal(t, want, r.Met)
	}
}

func mpirun(t *testing.T, args ...string) []string {
	path := program(t, "openmpi-bin", "mpirun.openmpi")
	return append([]string{path, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}, args...)
}

func TestOpenMPIRanksMeetOnOneHost(t *testing.T) {
	reports := launched(t, "meet", nil, mpirun(t, "-n", "3")...)
	requireWorld(t, reports, "Open MPI", 3)
	requireOneHost(t, reports)
	require.Equal(t, []string{"1", "2"}, reports[0].Met)
	require.Equal(t, KeyPrivate, reports[0].Strength)
}

func TestOpenMPIAloneNeedsNoMeetingPlace(t *testing.T) {
	reports := launched(t, "meet", nil, mpirun(t, "-n", "1")...)
	requireWorld(t, reports, "Open MPI", 1)
	require.Equal(t, Alone, reports[0].Kind)
}

// Two jobs at once must not meet each other.
func TestOpenMPIJobsDifferInAddressAndKey(t *testing.T) {
	command := mpirun(t, "-n", "2")
	a := launched(t, "meet", nil, command...)
	b := launched(t, "meet", nil, command...)
	require.NotEqual(t, a[0].Addresses, b[0].Addresses)
	require.Equal(t, a[0].Addresses, a[1].Addresses)
}

func TestVariablesGivenToMpirunThatDisagreeAreNamed(t *testing.T) {
	reports := launched(t, "who", []string{"RANK=0", "WORLD_SIZE=2"}, mpirun(t, "-n", "2")...)
	require.Len(t, reports, 2)
	var failed []string
	for _, r := range reports {
		failed = append(failed, r.Failed)
	}
	require.Contains(t, strings.Join(failed, "\n"), "RANK=0, OMPI_COMM_WORLD_RANK=1")
}

func hydraCommand(t *testing.T, args ...string) []string {
	return append([]string{program(t, "mpich", "mpiexec.hydra", "mpiexec.mpich")}, args...)
}

func TestHydraStoreOverInheritedDescriptor(t *testing.T) {
	reports := launched(t, "meet", nil, hydraCommand(t, "-n", "3")...)
	requireWorld(t, reports, "Hydra (PMI)", 3)
	requireOneHost(t, reports)
	requireMetInStore(t, reports)
}

func TestHydraStoreOverPort(t *testing.T) {
	reports := launched(t, "meet", nil, hydraCommand(t, "-pmi-port", "-n", "3")...)
	requireWorld(t, reports, "Hydra (PMI)", 3)
	requireOneHost(t, reports)
	requireMetInStore(t, reports)
}

// With a meeting place of ours the launcher's store isn't touched, and the
// launcher must not take that for a crash.
func TestHydraWithRootLeavesTheStoreAlone(t *testing.T) {
	for _, args := range [][]string{{"-n", "2"}, {"-pmi-port", "-n", "2"}} {
		probe, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		root := probe.Addr().String()
		require.NoError(t, probe.Close())
		reports := launched(t, "meet", []string{envRoot + "=" + root, envJobKey + "=for this test"}, hydraCommand(t, args...)...)
		requireWorld(t, reports, "Hydra (PMI)", 2)
		require.Equal(t, []string{root}, reports[1].Addresses)
		require.Equal(t, []string{"1"}, reports[0].Met)
		require.Equal(t, KeyGiven, reports[0].Strength)
	}
}

func TestRankZerosFailureReachesEveryRank(t *testing.T) {
	reports := launched(t, "failure", nil, hydraCommand(t, "-n", "3")...)
	require.Len(t, reports, 3)
	require.Equal(t, "no port to be had", reports[0].Failed)
	for _, r := range reports[1:] {
		require.Contains(t, r.Failed, "rank 0 failed: no port to be had")
	}
}

func TestMissingRankEndsTheBarrierAtItsDeadline(t *testing.T) {
	reports := launched(t, "absent", nil, hydraCommand(t, "-n", "2")...)
	require.NotEmpty(t, reports)
	require.Contains(t, reports[0].Failed, "for all 2 ranks to enter the launcher's barrier (this is rank 0)")
	require.Contains(t, reports[0].Failed, "deadline exceeded")
}

// A shell between the launcher and the program may close the descriptor.
func TestClosedDescriptorIsSaidSo(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	command := hydraCommand(t, "-n", "2", "sh", "-c", `eval "exec $PMI_FD>&-"; exec "$0"`, self)
	for _, r := range launchedAs(t, "meet", nil, command...) {
		assert.Contains(t, r.Failed, "PMI_FD=")
		assert.Contains(t, r.Failed, "a program between")
	}
}

// farShell stands in for ssh: it drops the host's name and runs the command
// here, so that a launcher believes it has several hosts.
func farShell(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/far"
	// Daemons of one job on one machine race for a directory in TMPDIR.
	script := `#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
TMPDIR=$0.$1
export TMPDIR
mkdir -p "$TMPDIR"
shift
exec sh -c "$*"
`
	require.NoError(t, os.WriteFile(path, []byte(script), 0o755))
	return path
}

func thisHost(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	return host
}

func requireOutsideAddress(t *testing.T) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return
		}
	}
	t.Skip("this machine has no address but loopback: mpirun can't offer one to other hosts")
}

func TestOpenMPIRanksOnTwoHostsMeetAtMpirun(t *testing.T) {
	requireOutsideAddress(t)
	reports := launched(t, "meet", nil, mpirun(t, "--mca", "plm_rsh_agent", farShell(t),
		"--host", thisHost(t)+":2,"+testNodes+"2:1", "-n", "3")...)
	requireWorld(t, reports, "Open MPI", 3)
	require.Equal(t, []string{"1", "2"}, reports[0].Met)
	require.Equal(t, KeyPrivate, reports[0].Strength)
	require.False(t, reports[0].SameHost)
	require.Equal(t, 1, reports[2].LocalSize)
	for _, address := range reports[2].Addresses {
		require.NotContains(t, address, "127.0.0.1")
	}
}

func TestOpenMPIWithMpirunOnAnotherHostNeedsARoot(t *testing.T) {
	command := mpirun(t, "--mca", "plm_rsh_agent", farShell(t), "--host", testNodes+"1:1,"+testNodes+"2:1",
		"-n", "2")
	// "who" so that rank 1 doesn't wait for rank 0 in vain.
	reports := launched(t, "who", nil, command...)
	require.Len(t, reports, 2)
	require.Contains(t, reports[0].Failed, "rank 0 is not on the host of mpirun; set "+envRoot)
}

func TestHydraStoreAcrossTwoHosts(t *testing.T) {
	reports := launched(t, "meet", nil, hydraCommand(t, "-launcher", "rsh", "-launcher-exec", farShell(t),
		"-hosts", thisHost(t)+","+testNodes+"2", "-n", "3")...)
	requireWorld(t, reports, "Hydra (PMI)", 3)
	requireMetInStore(t, reports)
	require.False(t, reports[0].SameHost)
}
