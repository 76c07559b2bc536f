package launch

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slurmCluster starts munged, slurmctld and two nodes' slurmd on this machine,
// from a configuration of the test's own, and stops them at its end. The calling
// goroutine stays locked to its thread: the daemons are to die with it, should
// the test be killed.
func slurmCluster(t *testing.T) (env []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("Slurm's daemons need root")
	}
	munged := daemonProgram(t, "munge", "munged")
	controller := daemonProgram(t, "slurm-wlm", "slurmctld")
	node := daemonProgram(t, "slurm-wlm", "slurmd")
	program(t, "slurm-wlm", "srun")
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)

	dir, err := os.MkdirTemp("", "launch-slurm-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	// munged insists that everybody can reach its socket and nobody its key.
	require.NoError(t, os.Chmod(dir, 0o755))
	for name, mode := range map[string]os.FileMode{"private": 0o700, "socket": 0o755, "state": 0o755,
		"spool." + testNodes + "1": 0o755, "spool." + testNodes + "2": 0o755} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), mode))
	}
	key := make([]byte, 128)
	_, err = rand.Read(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "private/key"), key, 0o400))
	config := filepath.Join(dir, "slurm.conf")
	require.NoError(t, os.WriteFile(config, []byte(slurmConfig(t, dir)), 0o644))
	env = []string{"SLURM_CONF=" + config}

	daemon(t, env, munged, "-F", "--key-file="+dir+"/private/key", "--socket="+dir+"/socket/munge",
		"--pid-file="+dir+"/socket/pid", "--seed-file="+dir+"/private/seed")
	waitFor(t, "munged's socket", func() bool {
		_, err := os.Stat(dir + "/socket/munge")
		return err == nil
	})
	daemon(t, env, controller, "-D", "-i")
	daemon(t, env, node, "-D", "-N", testNodes+"1")
	daemon(t, env, node, "-D", "-N", testNodes+"2")
	waitFor(t, "two idle nodes", func() bool {
		sinfo := exec.Command("sinfo", "-h", "-t", "idle", "-o", "%D")
		sinfo.Env = append(cleanEnvironment(), env...)
		out, err := sinfo.Output()
		return err == nil && strings.TrimSpace(string(out)) == "2"
	})
	return env
}

func daemonProgram(t *testing.T, debianPackage, name string) string {
	t.Helper()
	return program(t, debianPackage, name, "/usr/sbin/"+name)
}

func slurmConfig(t *testing.T, dir string) string {
	var ports []int
	for range 3 {
		probe, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer probe.Close() // all at once, so that they differ
		ports = append(ports, probe.Addr().(*net.TCPAddr).Port)
	}
	host := thisHost(t)
	lines := []string{
		"ClusterName=launchtest", "SlurmctldHost=" + host + "(127.0.0.1)", "SlurmUser=root", "SlurmdUser=root",
		"AuthType=auth/munge", "AuthInfo=socket=" + dir + "/socket/munge", "CredType=cred/munge",
		fmt.Sprintf("SlurmctldPort=%d", ports[0]),
		"StateSaveLocation=" + dir + "/state", "SlurmdSpoolDir=" + dir + "/spool.%n",
		"SlurmctldPidFile=" + dir + "/ctld.pid", "SlurmdPidFile=" + dir + "/d.%n.pid",
		"SlurmctldLogFile=" + dir + "/ctld.log", "SlurmdLogFile=" + dir + "/d.%n.log",
		"ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
		"SelectType=select/cons_tres", "SwitchType=switch/none", "MpiDefault=none", "ReturnToService=2",
		"SlurmdParameters=config_overrides",
	}
	for i := 1; i <= 2; i++ {
		lines = append(lines, fmt.Sprintf("NodeName=%s%d NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=4 State=UNKNOWN", testNodes, i, host, ports[i]))
	}
	lines = append(lines, "PartitionName=p Nodes="+testNodes+"[1-2] Default=YES State=UP OverSubscribe=FORCE:8")
	return strings.Join(lines, "\n") + "\n"
}

func daemon(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(cleanEnvironment(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		stopped := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		stopped.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(name), &out)
		}
	})
}

func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for !ready() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited 30 s for %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestSlurm(t *testing.T) {
	env := slurmCluster(t)
	t.Run("ranks on one node meet on loopback", func(t *testing.T) {
		reports := launched(t, "meet", env, "srun", "-N1", "-n3")
		requireWorld(t, reports, "Slurm", 3)
		requireOneHost(t, reports)
		require.Equal(t, []string{"1", "2"}, reports[0].Met)
		require.Equal(t, KeyPublic, reports[0].Strength)
	})
	t.Run("ranks on two nodes meet at the first", func(t *testing.T) {
		reports := launched(t, "meet", env, "srun", "-N2", "-n3")
		requireWorld(t, reports, "Slurm", 3)
		require.Equal(t, []string{"1", "2"}, reports[0].Met)
		require.Equal(t, 2, reports[0].LocalSize)
		for _, r := range reports {
			require.True(t, strings.HasPrefix(r.Addresses[0], testNodes+"1:"), "%v", r.Addresses)
		}
	})
	t.Run("with PMI the ranks meet in Slurm's store", func(t *testing.T) {
		reports := launched(t, "meet", env, "srun", "--mpi=pmi2", "-N2", "-n3")
		requireWorld(t, reports, "Slurm (PMI)", 3)
		requireMetInStore(t, reports)
		require.Equal(t, 2, reports[0].LocalSize, "taken from Slurm's variables")
	})
	t.Run("a shell inside an allocation is a world of one", func(t *testing.T) {
		reports := launched(t, "meet", env, "salloc", "-N2", "-n3")
		requireWorld(t, reports, "none", 1)
		require.Contains(t, strings.Join(reports[0].Notes, "\n"), "not in a step of srun")
	})
	t.Run("a launcher inside a step counts, the step around it doesn't", func(t *testing.T) {
		mpi := mpirun(t, "--mca", "plm", "isolated", "--mca", "ras", "^slurm", "--host", thisHost(t)+":2", "-n", "2")
		reports := launched(t, "meet", env, append([]string{"srun", "-N1", "-n1", "--export=ALL,OMPI_MCA_rmaps_base_oversubscribe=1"}, mpi...)...)
		requireWorld(t, reports, "Open MPI", 2)
		require.Contains(t, strings.Join(reports[0].Notes, "\n"), "the layer that started Open MPI")
	})
	t.Run("variables given to srun that disagree are named", func(t *testing.T) {
		reports := launched(t, "who", env, "srun", "-N1", "-n2", "--export=ALL,RANK=0,WORLD_SIZE=2,MASTER_ADDR=127.0.0.1,MASTER_PORT=9")
		require.Len(t, reports, 2)
		failed := reports[0].Failed + reports[1].Failed
		require.Contains(t, failed, "RANK=0, SLURM_PROCID=1")
	})
}
