package bootstrap

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hosts makes two network namespaces, two hosts as far as sockets can tell,
// with a cable between them: head at 10.77.0.1, where the name "head" means
// loopback, and other at 10.77.0.2. It skips where that takes rights it lacks.
func hosts(t *testing.T) (head, other string) {
	head, other = fmt.Sprintf("bootstrap-head-%d", os.Getpid()), fmt.Sprintf("bootstrap-other-%d", os.Getpid())
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	for _, ns := range []string{head, other} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("can't make network namespaces: %v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	}
	// Some interfaces that lead nowhere, before the one that matters.
	for i := range 3 {
		nowhere(t, head, 90, i)
	}
	ip(t, "link", "add", "cable0", "netns", head, "type", "veth", "peer", "name", "cable1", "netns", other)
	for i, ns := range []string{head, other} {
		cable := fmt.Sprintf("cable%d", i)
		ip(t, "-n", ns, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", cable)
		ip(t, "-n", ns, "link", "set", "lo", "up")
		ip(t, "-n", ns, "link", "set", cable, "up")
		// "ip netns exec" shows this file to its program as /etc/hosts.
		dir := filepath.Join("/etc/netns", ns)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() { os.RemoveAll(dir) })
		text := []string{"127.0.0.1 localhost\n127.0.1.1 head\n", "127.0.0.1 localhost\n10.77.0.1 head\n"}[i]
		require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts"), []byte(text), 0o644))
	}
	return head, other
}

func ip(t *testing.T, args ...string) {
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", strings.Join(args, " "), out)
}

func nowhere(t *testing.T, ns string, net, i int) {
	dev := fmt.Sprintf("none%d-%d", net, i)
	ip(t, "-n", ns, "link", "add", dev, "type", "veth", "peer", "name", "end-"+dev)
	ip(t, "-n", ns, "addr", "add", fmt.Sprintf("10.%d.%d.1/24", net, i), "dev", dev)
	ip(t, "-n", ns, "link", "set", dev, "up")
}

func onHost(ns string, env ...string) *exec.Cmd {
	cmd := exec.Command("ip", "netns", "exec", ns, os.Args[0])
	cmd.Env = env
	return cmd
}

// Two ranks on each of two hosts, with ids of both kinds, find one another at
// addresses that mean something to each; a loopback address is told to nobody.
func TestTwoHosts(t *testing.T) {
	head, other := hosts(t)
	byName, err := MakeID([]byte(t.Name()), "head:5000")
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		id   ID
	}{
		{"an id that was handed over", ID{}},
		{"a name that is loopback on one host", byName},
	} {
		t.Run(tc.name, func(t *testing.T) { fourOnTwoHosts(t, head, other, tc.id) })
	}
	// oneCCL issue 209: many interfaces, and the job waits forever.
	for i := range 20 {
		for n, ns := range []string{head, other} {
			nowhere(t, ns, 80+n, i)
		}
	}
	t.Run("twenty more interfaces", func(t *testing.T) { fourOnTwoHosts(t, head, other, ID{}) })
}

func fourOnTwoHosts(t *testing.T, head, other string, id ID) {
	const n = 4
	cs := make([]*child, n)
	cs[0] = startCommand(t, onHost(head, childListen+"=yes"), id, 0, n, patient)
	id, err := ParseID(strings.TrimPrefix(cs[0].until(t, "id "), "id "))
	require.NoError(t, err)
	for r := 1; r < n; r++ {
		cs[r] = startCommand(t, onHost([]string{head, other}[r%2]), id, r, n, patient)
	}
	for r, c := range cs {
		c.until(t, "joined")
		c.say(t, fmt.Sprintf("hello from %d", r))
	}
	for r, c := range cs {
		for from := range n {
			if from != r {
				c.until(t, fmt.Sprintf("message %d hello from %d", from, from))
			}
		}
	}
	require.NoError(t, cs[3].cmd.Process.Kill())
	for r := range 3 {
		cs[r].until(t, "lost 3")
		cs[r].say(t, "close")
	}
	for r := range 3 {
		<-cs[r].gone
		require.Equal(t, []string{"3"}, cs[r].said("lost"))
		require.Empty(t, cs[r].said("close"))
	}
}
