package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settings are NAME=value words; a word may not hold a space.
func lookupIn(settings string) func(string) (string, bool) {
	values := map[string]string{}
	for _, s := range strings.Fields(settings) {
		name, value, _ := strings.Cut(s, "=")
		values[name] = value
	}
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}

// found is Find on a machine named pod "sum-2", with a hosts file of the test's.
func found(explicit Explicit, settings, hosts string) (World, error) {
	env := newEnvironment(context.Background(), lookupIn(settings))
	env.hostname = func() (string, error) { return "sum-2", nil }
	env.hosts = func() ([]byte, error) { return []byte(hosts), nil }
	return find(context.Background(), explicit, env)
}

const (
	torch = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=r "
	ompi  = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=77 "
	pmiFD = "PMI_RANK=3 PMI_SIZE=8 PMI_FD=6 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
	srun  = "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x4) SLURM_STEP_NODELIST=n[08-11] "
	pod   = "JOB_COMPLETION_INDEX=2 COMPLETIONS=4 GOLLECTIVE_SUBDOMAIN=ring "
	own   = "GOLLECTIVE_RANK=3 GOLLECTIVE_SIZE=8 GOLLECTIVE_LOCAL_RANK=1 GOLLECTIVE_LOCAL_SIZE=2 "
)

func TestCompleteSets(t *testing.T) {
	for _, tc := range []struct {
		name, settings string
		explicit       Explicit
		source         string
		rank, size     int
		local          [2]int
		kind           Kind
		address        string // "*" for a port made from a key
		strength       Strength
	}{
		{name: "nothing set", source: "none", size: 1, local: [2]int{0, 1}},
		{name: "empty variables are not set", settings: "RANK= WORLD_SIZE= PMI_FD=", source: "none", size: 1, local: [2]int{0, 1}},
		{name: "a batch script of Slurm is one process", settings: "SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=3", source: "none", size: 1, local: [2]int{0, 1}},
		{name: "a leftover MASTER_ADDR gives no rank", settings: "MASTER_ADDR=a MASTER_PORT=1", source: "none", size: 1, local: [2]int{0, 1}},
		{name: "config", explicit: Explicit{Rank: 1, Size: 2, Root: "[::1]:7"}, settings: torch + own, source: "config", rank: 1, size: 2, local: [2]int{-1, 0}, kind: Address, address: "[::1]:7"},
		{name: "config with local ranks and an id", explicit: Explicit{Rank: 1, Size: 4, LocalRank: 1, LocalSize: 2, ID: "idtext"}, source: "config", rank: 1, size: 4, local: [2]int{1, 2}, kind: ID},
		{name: "config gives only the id", explicit: Explicit{ID: "idtext"}, settings: torch, source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: ID},
		{name: "config and MASTER_ADDR", explicit: Explicit{Rank: 1, Size: 2}, settings: "MASTER_ADDR=h MASTER_PORT=100", source: "config", rank: 1, size: 2, local: [2]int{-1, 0}, kind: Address, address: "h:1100"},
		{name: "own, id", settings: own + "GOLLECTIVE_COMM_ID=idtext", source: "GOLLECTIVE_*", rank: 3, size: 8, local: [2]int{1, 2}, kind: ID},
		{name: "own, id as NCCL has it", settings: own + "GOLLECTIVE_COMM_ID=10.1.1.1:99", source: "GOLLECTIVE_*", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.1.1.1:99"},
		{name: "own, root and a key", settings: own + "GOLLECTIVE_ROOT=h:99 GOLLECTIVE_JOB_KEY=k", source: "GOLLECTIVE_*", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "h:99", strength: KeyGiven},
		{name: "own wins over launchers that disagree", settings: own + "GOLLECTIVE_ROOT=h:99 RANK=0 PMI_RANK=9 JOB_COMPLETION_INDEX=x", source: "GOLLECTIVE_*", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "h:99"},
		{name: "own, alone", settings: "GOLLECTIVE_RANK=0 GOLLECTIVE_SIZE=1", source: "GOLLECTIVE_*", size: 1, local: [2]int{-1, 0}},
		{name: "torchrun", settings: torch, source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.0.0.1:30500", strength: KeyPublic},
		{name: "torchrun with a port it picked itself", settings: torch + "MASTER_PORT=45678", source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.0.0.1:15678", strength: KeyPublic},
		{name: "torchrun over IPv6", settings: torch + "MASTER_ADDR=fd00::1", source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "[fd00::1]:30500", strength: KeyPublic},
		{name: "Open MPI on one host", settings: ompi + "OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=8", source: "Open MPI", rank: 3, size: 8, local: [2]int{3, 8}, kind: Address, address: "127.0.0.1:*", strength: KeyPublic},
		{name: "Open MPI on hosts, mpirun's address", settings: ompi + "OMPI_MCA_orte_hnp_uri=7.0;tcp://127.0.0.1,10.2.0.1:4089", source: "Open MPI", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.2.0.1:*", strength: KeyPublic},
		{name: "Open MPI on hosts, MASTER_ADDR by mpirun -x", settings: ompi + "MASTER_ADDR=h MASTER_PORT=2000", source: "Open MPI", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "h:3000", strength: KeyPublic},
		{name: "Open MPI with its random key", settings: ompi + "GOLLECTIVE_ROOT=h:9 OMPI_MCA_orte_precondition_transports=1-2", source: "Open MPI", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "h:9", strength: KeyPrivate},
		{name: "Hydra", settings: pmiFD, source: "Hydra (PMI)", rank: 3, size: 8, local: [2]int{1, 2}, kind: Store},
		{name: "Hydra with one rank", settings: "PMI_RANK=0 PMI_SIZE=1 PMI_FD=6", source: "Hydra (PMI)", size: 1, local: [2]int{-1, 0}},
		{name: "Slurm", settings: srun, source: "Slurm", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "n08:*", strength: KeyPublic},
		{name: "Slurm with reserved ports", settings: srun + "SLURM_STEP_RESV_PORTS=12000-12003", source: "Slurm", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "n08:12000", strength: KeyPublic},
		{name: "Slurm serving PMI", settings: srun + "PMI_RANK=3 PMI_SIZE=8 PMI_FD=6", source: "Slurm (PMI)", rank: 3, size: 8, local: [2]int{1, 2}, kind: Store},
		{name: "Slurm beside a size that agrees", settings: srun + "WORLD_SIZE=8 MASTER_ADDR=n08", source: "Slurm", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "n08:*", strength: KeyPublic},
		{name: "Kubernetes", settings: pod, source: "Kubernetes", rank: 2, size: 4, local: [2]int{0, 1}, kind: Address, address: "sum-0.ring:29477"},
		{name: "Kubernetes, size by our name", settings: "JOB_COMPLETION_INDEX=2 GOLLECTIVE_SIZE=4 GOLLECTIVE_SUBDOMAIN=ring HOSTNAME=my-job-2", source: "Kubernetes", rank: 2, size: 4, local: [2]int{0, 1}, kind: Address, address: "my-job-0.ring:29477"},
		{name: "torchrun started once per node by srun", settings: torch + srun + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1(x4)", source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.0.0.1:30500", strength: KeyPublic},
		{name: "torchrun in the pods of an Indexed Job", settings: torch + "JOB_COMPLETION_INDEX=2", source: "torchrun", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "10.0.0.1:30500", strength: KeyPublic},
		{name: "mpirun from a shell that is one task", settings: ompi + "GOLLECTIVE_ROOT=h:9 PMI_RANK=0 PMI_SIZE=1", source: "Open MPI", rank: 3, size: 8, local: [2]int{1, 2}, kind: Address, address: "h:9", strength: KeyPublic},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, err := found(tc.explicit, tc.settings, "")
			require.NoError(t, err)
			assert.Equal(t, tc.source, w.Source)
			assert.Equal(t, []int{tc.rank, tc.size}, []int{w.Rank, w.Size})
			assert.Equal(t, tc.local, [2]int{w.LocalRank, w.LocalSize})
			require.Equal(t, tc.kind, w.Rendezvous.Kind)
			if tc.kind == ID {
				assert.Equal(t, "idtext", w.Rendezvous.ID)
			}
			if tc.kind == Address {
				require.Len(t, w.Rendezvous.Addresses, 1)
				requireAddress(t, tc.address, w.Rendezvous.Addresses[0])
			}
			assert.Equal(t, tc.strength.String(), w.Rendezvous.Key.Strength.String())
		})
	}
}

func requireAddress(t *testing.T, want, got string) {
	t.Helper()
	head, derived := strings.CutSuffix(want, "*")
	if !derived {
		require.Equal(t, want, got)
		return
	}
	text, ok := strings.CutPrefix(got, head)
	require.True(t, ok, "%s, want %s", got, want)
	var port int
	_, err := fmt.Sscanf(text, "%d", &port)
	require.NoError(t, err)
	require.True(t, port >= portBase && port < portBase+portCount, got)
}

func TestPartialAndContradictorySets(t *testing.T) {
	for _, tc := range []struct {
		name, settings string
		explicit       Explicit
		is             error
		says           []string
	}{
		{name: "config, rank without size", explicit: Explicit{Rank: 1}, is: ErrIncomplete, says: []string{"Size is 0"}},
		{name: "config, rank beyond size", explicit: Explicit{Rank: 2, Size: 2}, is: ErrConflict, says: []string{"Rank=2", "Size=2"}},
		{name: "config, negative rank", explicit: Explicit{Rank: -1, Size: 2}, is: ErrValue, says: []string{"Rank is -1"}},
		{name: "config, local rank without its size", explicit: Explicit{Rank: 1, Size: 2, LocalRank: 1}, is: ErrIncomplete, says: []string{"LocalSize"}},
		{name: "config, two meeting places", explicit: Explicit{Rank: 1, Size: 2, ID: "x", Root: "h:1"}, is: ErrConflict, says: []string{"ID", "Root"}},
		{name: "config, no meeting place", explicit: Explicit{Rank: 1, Size: 2}, is: ErrNoRendezvous, says: []string{"rank 1 of 2", envRoot}},
		{name: "own, no meeting place", settings: own, is: ErrNoRendezvous, says: []string{envCommID, envRoot}},
		{name: "own, two meeting places", settings: own + "GOLLECTIVE_COMM_ID=x GOLLECTIVE_ROOT=h:1", is: ErrConflict, says: []string{envCommID, envRoot}},
		{name: "own, rank without size", settings: "GOLLECTIVE_RANK=1", is: ErrIncomplete, says: []string{"GOLLECTIVE_RANK is set, GOLLECTIVE_SIZE is not"}},
		{name: "own, rank without size beside a launcher", settings: "GOLLECTIVE_RANK=1 " + torch, is: ErrIncomplete, says: []string{"GOLLECTIVE_SIZE is not"}},
		{name: "own, size without rank", settings: "GOLLECTIVE_SIZE=2", is: ErrIncomplete, says: []string{"GOLLECTIVE_RANK is not"}},
		{name: "own, local rank only", settings: "GOLLECTIVE_LOCAL_RANK=2", is: ErrIncomplete, says: []string{"GOLLECTIVE_LOCAL_RANK is set"}},
		{name: "own, root without a port", settings: own + "GOLLECTIVE_ROOT=host", is: ErrValue, says: []string{"GOLLECTIVE_ROOT", "host:port"}},
		{name: "own, root with port 0", settings: own + "GOLLECTIVE_ROOT=host:0", is: ErrValue, says: []string{"1 to 65535"}},
		{name: "own, local rank beyond local size", settings: own + "GOLLECTIVE_LOCAL_RANK=2", is: ErrConflict, says: []string{"local rank 2 of 2"}},
		{name: "own size, launcher's size", settings: "GOLLECTIVE_SIZE=4 " + pmiFD, is: ErrConflict, says: []string{"GOLLECTIVE_SIZE=4", "PMI_SIZE=8"}},
		{name: "torchrun, no size", settings: "RANK=1", is: ErrIncomplete, says: []string{"RANK is set, WORLD_SIZE is not"}},
		{name: "torchrun, no rank", settings: "WORLD_SIZE=2", is: ErrIncomplete, says: []string{"WORLD_SIZE is set, RANK is not"}},
		{name: "torchrun, local only", settings: "LOCAL_RANK=1", is: ErrIncomplete, says: []string{"LOCAL_RANK is set, RANK and WORLD_SIZE are not"}},
		{name: "torchrun, rank beyond size", settings: torch + "RANK=8", is: ErrConflict, says: []string{"RANK=8 is not below WORLD_SIZE=8"}},
		{name: "torchrun, no number", settings: torch + "RANK=one", is: ErrValue, says: []string{`RANK="one"`}},
		{name: "torchrun, size 0", settings: torch + "WORLD_SIZE=0", is: ErrValue, says: []string{"WORLD_SIZE=0"}},
		{name: "torchrun, huge", settings: torch + "WORLD_SIZE=99999999999999999999", is: ErrValue, says: []string{"WORLD_SIZE"}},
		{name: "torchrun, no address", settings: torch + "MASTER_ADDR=", is: ErrNoRendezvous, says: []string{"MASTER_ADDR is not"}},
		{name: "torchrun, no port", settings: torch + "MASTER_PORT=", is: ErrNoRendezvous, says: []string{"MASTER_PORT is not"}},
		{name: "torchrun, bad port", settings: torch + "MASTER_PORT=70000", is: ErrValue, says: []string{"MASTER_PORT"}},
		{name: "torchrun and Open MPI, ranks", settings: torch + ompi + "RANK=4", is: ErrConflict, says: []string{"RANK=4, OMPI_COMM_WORLD_RANK=3"}},
		{name: "torchrun and Open MPI, sizes", settings: torch + ompi + "WORLD_SIZE=4", is: ErrConflict, says: []string{"WORLD_SIZE=4, OMPI_COMM_WORLD_SIZE=8"}},
		{name: "half of torchrun against Open MPI", settings: "RANK=2 " + ompi, is: ErrConflict, says: []string{"OMPI_COMM_WORLD_RANK=3, RANK=2"}},
		{name: "ranks copied to every task of srun", settings: srun + "RANK=0 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=1", is: ErrConflict, says: []string{"RANK=0, SLURM_PROCID=3"}},
		{name: "srun from a shell under mpirun", settings: srun + "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", is: ErrConflict, says: []string{"OMPI_COMM_WORLD_RANK=0, SLURM_PROCID=3"}},
		{name: "Open MPI on hosts, no address", settings: ompi, is: ErrNoRendezvous, says: []string{"2 of 8 ranks on this host", envRoot}},
		{name: "Open MPI, nothing shared", settings: ompi + "PMIX_NAMESPACE=", is: ErrNoRendezvous, says: []string{"neither a key", envRoot}},
		{name: "Open MPI, mpirun's address is nonsense", settings: ompi + "OMPI_MCA_orte_hnp_uri=7.0;tcp://x:1", is: ErrValue, says: []string{"OMPI_MCA_orte_hnp_uri"}},
		{name: "Hydra, no size", settings: "PMI_RANK=1", is: ErrIncomplete, says: []string{"PMI_SIZE is not"}},
		{name: "Hydra, only a descriptor", settings: "PMI_FD=6", is: ErrIncomplete, says: []string{"PMI_FD is set, PMI_RANK and PMI_SIZE are not"}},
		{name: "Hydra, no store", settings: "PMI_RANK=1 PMI_SIZE=2", is: ErrNoRendezvous, says: []string{"neither PMI_FD nor PMI_PORT"}},
		{name: "Hydra, bad descriptor", settings: pmiFD + "PMI_FD=six", is: ErrValue, says: []string{"PMI_FD"}},
		{name: "Hydra, bad port", settings: "PMI_RANK=1 PMI_SIZE=2 PMI_PORT=host", is: ErrValue, says: []string{"PMI_PORT"}},
		{name: "Slurm, no task", settings: srun + "SLURM_PROCID=", is: ErrIncomplete, says: []string{"SLURM_PROCID is not"}},
		{name: "Slurm, no nodes", settings: srun + "SLURM_STEP_NODELIST=", is: ErrNoRendezvous, says: []string{"SLURM_STEP_NODELIST"}},
		{name: "Slurm, list too short", settings: srun + "SLURM_NODEID=4", is: ErrValue, says: []string{"SLURM_STEP_TASKS_PER_NODE"}},
		{name: "Slurm, task 0 elsewhere", settings: srun + "SLURM_PROCID=0 SLURM_LOCALID=0 SLURMD_NODENAME=n09", is: ErrNoRendezvous, says: []string{"task 0 is on node 1", "n09"}},
		{name: "Slurm, broken list", settings: srun + "SLURM_STEP_NODELIST=n[1", is: ErrValue, says: []string{"SLURM_STEP_NODELIST"}},
		{name: "Kubernetes, no size", settings: "JOB_COMPLETION_INDEX=1", is: ErrIncomplete, says: []string{"COMPLETIONS", envSize}},
		{name: "Kubernetes, index beyond size", settings: pod + "COMPLETIONS=2", is: ErrConflict, says: []string{"JOB_COMPLETION_INDEX=2", "COMPLETIONS=2"}},
		{name: "Kubernetes, no subdomain", settings: pod + "GOLLECTIVE_SUBDOMAIN=", is: ErrNoRendezvous, says: []string{"headless Service", envSubdomain}},
		{name: "Kubernetes, renamed pod", settings: pod + "HOSTNAME=worker", is: ErrNoRendezvous, says: []string{"worker"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := found(tc.explicit, tc.settings, "")
			require.ErrorIs(t, err, tc.is)
			for _, text := range tc.says {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

// The names a pod is known by stand in the hosts file the kubelet writes.
func TestKubernetesFindsItsSubdomain(t *testing.T) {
	hosts := "127.0.0.1 localhost\n10.0.0.7\tsum-2.ring.default.svc.cluster.local\tsum-2 # this pod\n"
	w, err := found(Explicit{}, pod+"GOLLECTIVE_SUBDOMAIN=", hosts)
	require.NoError(t, err)
	require.Equal(t, []string{"sum-0.ring.default.svc.cluster.local:29477"}, w.Rendezvous.Addresses)
	require.True(t, w.Rendezvous.Appears)
}

// All ranks of a job must come to one address and one key, and the key must
// change with every part that tells jobs apart.
func TestKeysAreTheJobsOwn(t *testing.T) {
	place := func(settings string) Rendezvous {
		w, err := found(Explicit{}, settings, "")
		require.NoError(t, err)
		return w.Rendezvous
	}
	base := place(srun)
	other := place(srun + "SLURM_PROCID=5 SLURM_NODEID=2")
	require.Equal(t, base.Key, other.Key)
	require.Equal(t, base.Addresses, other.Addresses)
	for _, change := range []string{"SLURM_JOB_ID=6", "SLURM_STEP_ID=1", "SLURM_CLUSTER_NAME=c", "GOLLECTIVE_JOB_KEY=k"} {
		require.NotEqual(t, base.Key.Secret, place(srun+change).Key.Secret, change)
	}
	require.NotEqual(t, place(torch).Key.Secret, place(torch+"TORCHELASTIC_RESTART_COUNT=1").Key.Secret)
	require.NotEqual(t, Key{}.with("a", KeyPublic, "bc", "d").Secret, Key{}.with("a", KeyPublic, "b", "cd").Secret)
}

func TestNothingPrintsASecret(t *testing.T) {
	w, err := found(Explicit{}, own+"GOLLECTIVE_COMM_ID=hidden", "")
	require.NoError(t, err)
	x, err := found(Explicit{}, ompi+"GOLLECTIVE_ROOT=h:9 OMPI_MCA_orte_precondition_transports=hidden GOLLECTIVE_JOB_KEY=hidden", "")
	require.NoError(t, err)
	for _, world := range []World{w, x} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			text := fmt.Sprintf(verb, world)
			require.NotContains(t, text, "hidden", verb)
			require.NotContains(t, text, fmt.Sprint(world.Rendezvous.Key.Secret[0], " ", world.Rendezvous.Key.Secret[1]), verb)
		}
	}
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", x.Rendezvous.Key, x.Rendezvous.Key, x.Rendezvous.Key), "0x")
}

func TestNodes(t *testing.T) {
	for list, want := range map[string]string{
		"login":                    "login",
		"a,b,c":                    "a b c",
		"node[01-03,7],login":      "node01 node02 node03 node7 login",
		"n[8-11]":                  "n8 n9 n10 n11",
		"n[008-011]":               "n008 n009 n010 n011",
		"r[1-2]n[0-1]x":            "r1n0x r1n1x r2n0x r2n1x",
		"a[1].example.org,b-c_d":   "a1.example.org b-c_d",
		"gpu-a[1,3],gpu-b[2-2],x9": "gpu-a1 gpu-a3 gpu-b2 x9",
	} {
		var got []string
		for name, err := range Nodes(list) {
			require.NoError(t, err, list)
			got = append(got, name)
		}
		require.Equal(t, want, strings.Join(got, " "), list)
		first, err := FirstNode(list)
		require.NoError(t, err)
		require.Equal(t, got[0], first)
	}
	for _, list := range []string{"", ",", "a,", "n[", "n]", "n[1", "n[]", "n[a]", "n[3-1]", "n[1-]", "n[[1]]", "n[1]]", "n[-1]",
		"n[1,]", "a b", "a\n", "n[12345678901]", "n[+1]"} {
		var failed error
		for _, err := range Nodes(list) {
			failed = errors.Join(failed, err)
		}
		require.Error(t, failed, "%q", list)
	}
}

// A few bytes that name billions of nodes end in an error.
func TestNodesIsBounded(t *testing.T) {
	names := 0
	var failed error
	for _, err := range Nodes("n[0-9999999999]x[0-9999999999]") {
		if err != nil {
			failed = err
			continue
		}
		names++
	}
	require.ErrorContains(t, failed, "more than")
	require.Equal(t, maxNodes, names)
}

func TestTasksOnNode(t *testing.T) {
	for node, want := range []int{4, 4, 3, 1, 1, 1} {
		got, err := tasksOnNode("4(x2),3,1(x3)", node)
		require.NoError(t, err)
		require.Equal(t, want, got, "node %d", node)
	}
	for _, list := range []string{"", "x", "4(x", "4(x)", "4(x0)", "0", "-1", "4(x2", "4x2)"} {
		_, err := tasksOnNode(list, 0)
		require.Error(t, err, "%q", list)
	}
}

func TestContactHosts(t *testing.T) {
	hosts, err := contactHosts("7.0;tcp://127.0.0.1,10.0.0.1,169.254.1.1:40889;tcp6://[fe80::1],[fd00::2]:59337;usock://x")
	require.NoError(t, err)
	require.Equal(t, "[10.0.0.1 fd00::2]", fmt.Sprint(hosts))
	hosts, err = contactHosts("7.0;tcp6://[fd00::2,fd00::3]:59337")
	require.NoError(t, err)
	require.Equal(t, "[fd00::2 fd00::3]", fmt.Sprint(hosts))
	for _, bad := range []string{"7.0;tcp://10.0.0.1", "7.0;tcp://:1", "7.0;tcp://a,b:1"} {
		_, err := contactHosts(bad)
		require.Error(t, err, bad)
	}
}

// lookups answers with each error in turn, then with an address.
func lookups(asked *int, answers ...error) lookupFunc {
	return func(context.Context, string, string) ([]netip.Addr, error) {
		n := *asked
		*asked++
		if n < len(answers) {
			return nil, answers[n]
		}
		return []netip.Addr{netip.MustParseAddr("10.0.0.9")}, nil
	}
}

func TestResolve(t *testing.T) {
	unknown := &net.DNSError{Err: "no such host", Name: "h", IsNotFound: true}
	busy := &net.DNSError{Err: "server misbehaving", Name: "h", IsTemporary: true}
	at := Rendezvous{Kind: Address, From: "X", Addresses: []string{"h:7"}}
	ctx := context.Background()

	asked := 0
	got, err := Rendezvous{Kind: Address, Addresses: []string{"10.0.0.1:7", "[::ffff:10.0.0.2]:7"}}.resolve(ctx, lookups(&asked))
	require.NoError(t, err)
	require.Equal(t, "[10.0.0.1:7 10.0.0.2:7]", fmt.Sprint(got))
	require.Zero(t, asked, "an IP address needs no name server")

	got, err = at.resolve(ctx, lookups(&asked, busy))
	require.NoError(t, err)
	require.Equal(t, "[10.0.0.9:7]", fmt.Sprint(got))
	require.Equal(t, 2, asked, "a busy server is asked again")

	asked = 0
	_, err = at.resolve(ctx, lookups(&asked, unknown))
	require.ErrorIs(t, err, unknown)
	require.Equal(t, 1, asked, "a name that is wrong stays wrong")

	asked, at.Appears = 0, true
	_, err = at.resolve(ctx, lookups(&asked, unknown, unknown))
	require.NoError(t, err)
	require.Equal(t, 3, asked, "a pod's name is waited for")

	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = at.resolve(short, lookups(new(int), slices.Repeat([]error{unknown}, 1000)...))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "address of rank 0, h:7 (X)")
	require.ErrorContains(t, err, "no such host")
}

func TestVariablesAreOurs(t *testing.T) {
	for _, name := range Variables() {
		require.True(t, strings.HasPrefix(name, "GOLLECTIVE_"), name)
	}
}
