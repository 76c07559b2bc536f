package collective

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/spin"
)

func TestEveryVariableSetsItsField(t *testing.T) {
	for _, tc := range []struct {
		variable string
		want     func(*Config)
	}{
		{"ALGO=tree", func(c *Config) { c.Algorithm = plan.Tree }},
		{"ALGO=oneshot", func(c *Config) { c.Algorithm = plan.OneShot }},
		{"ALGO=RING", func(c *Config) { c.Algorithm = plan.Ring }},
		{"ALGO=auto", func(c *Config) { c.Algorithm = plan.AutoAlgorithm }},
		{"PROTO=LL128", func(c *Config) { c.Protocol = plan.LL128 }},
		{"PROTO=simple", func(c *Config) { c.Protocol = plan.Simple }},
		{"WAIT=Block", func(c *Config) { c.Wait = spin.Block }},
		{"TIMEOUT=1m30s", func(c *Config) { c.Timeout = 90 * time.Second }},
		{"MIN_NCHANNELS=2", func(c *Config) { c.MinChannels = 2 }},
		{"MAX_NCHANNELS=0x10", func(c *Config) { c.MaxChannels = 16 }},
		{"BUFFSIZE=1048576", func(c *Config) { c.BuffSize = 1 << 20 }},
		{"LL_BUFFSIZE=4096", func(c *Config) { c.LLBuffSize = 4096 }},
		{"LL128_BUFFSIZE=8192", func(c *Config) { c.LL128BuffSize = 8192 }},
		{"P2P_CHUNKSIZE=65536", func(c *Config) { c.P2PChunkSize = 65536 }},
		{"RANKS_PER_NODE=2", func(c *Config) { c.RanksPerNode = 2 }},
		{"REPRODUCIBLE=1", func(c *Config) { c.Reproducible = true }},
		{"TUNER_FILE=t.csv", func(c *Config) { c.TunerFile = "t.csv" }},
		{"TRANSPORT=inproc", func(c *Config) { c.Transport = "inproc" }},
		{"JOIN_TIMEOUT=3s", func(c *Config) { c.JoinTimeout = 3 * time.Second }},
		{"SOCKET_IFNAME=eth0", func(c *Config) { c.SocketIfname = "eth0" }},
		{"SOCKET_FAMILY=AF_INET", func(c *Config) { c.SocketFamily = "AF_INET" }},
		{"PORTS=2000-3000", func(c *Config) { c.Ports = "2000-3000" }},
		{"HOSTID=a", func(c *Config) { c.HostID = "a" }},
		{"PROXY=inline", func(c *Config) { c.Proxy = "inline" }},
		{"PROXY_CPUSET=1-2", func(c *Config) { c.ProxyCPUs = "1-2" }},
		{"SOCKET_NTHREADS=2", func(c *Config) { c.SocketThreads = 2 }},
		{"NSOCKS_PERTHREAD=3", func(c *Config) { c.SocketsPerThread = 3 }},
		{"SOCKET_BUFFER=65536", func(c *Config) { c.SocketBuffer = 65536 }},
		{"SOCKET_RATE=1000000", func(c *Config) { c.SocketRate = 1000000 }},
		{"PEER_TIMEOUT=4s", func(c *Config) { c.PeerTimeout = 4 * time.Second }},
		{"TLS=job", func(c *Config) { c.TLS = "job" }},
		{"TLS_CERT=c", func(c *Config) { c.TLSCert = "c" }},
		{"TLS_KEY=k", func(c *Config) { c.TLSKey = "k" }},
		{"TLS_CA=a", func(c *Config) { c.TLSCA = "a" }},
		{"ACCOUNTING=1", func(c *Config) { c.Accounting = true }},
		{"ACCOUNTING=0", func(c *Config) { c.Accounting = false }},
		{"PROFILE=1", func(c *Config) { c.Profile = true }},
		{"PROFILE=0", func(c *Config) { c.Profile = false }},
		{"DEBUG=warn", func(*Config) {}},
		{"BUFFSIZE=", func(*Config) {}},
	} {
		// Fields that a program has set are overridden, others are kept.
		for _, given := range []Config{{}, {
			Algorithm: plan.Ring, Protocol: plan.LL, Wait: spin.Yield, Timeout: time.Second, MinChannels: 3, MaxChannels: 4,
			BuffSize: 5 << 10, LLBuffSize: 6 << 10, LL128BuffSize: 7 << 10, P2PChunkSize: 8 << 10, RanksPerNode: 9,
			Transport: "shm", JoinTimeout: time.Minute, SocketIfname: "lo", SocketFamily: "AF_INET6", Ports: "1000-1001",
			Accounting: true, Profile: true, TunerFile: "u.csv",
			HostID: "h", Proxy: "thread", ProxyCPUs: "0", SocketThreads: 4, SocketsPerThread: 5, SocketBuffer: 6, SocketRate: 7,
			PeerTimeout: time.Hour, TLS: "off", TLSCert: "x", TLSKey: "y", TLSCA: "z",
		}} {
			want := given
			tc.want(&want)
			got, err := given.applyEnviron([]string{"PATH=/bin", envPrefix + tc.variable, "NCCL_ALGO=nonsense"})
			require.NoError(t, err, tc.variable)
			got.origins = nil
			require.Equal(t, want, got, tc.variable)
		}
		delete(untested, strings.SplitN(tc.variable, "=", 2)[0])
	}
	require.Empty(t, untested)
}

// untested are the variables that TestEveryVariableSetsItsField has not met.
var untested = func() map[string]bool {
	all := make(map[string]bool)
	for name := range variables {
		all[name] = true
	}
	return all
}()

func TestAListAllowsAlgorithmsAndProtocolsByCollective(t *testing.T) {
	t.Setenv("GOLLECTIVE_ALGO", "ring;allreduce:tree")
	t.Setenv("GOLLECTIVE_PROTO", "^ll;broadcast:ll")
	comms, err := InitAllConfig(3, Config{Algorithm: plan.Ring, Protocol: plan.Simple})
	require.NoError(t, err)
	defer func() {
		for _, c := range comms {
			require.NoError(t, c.Close())
		}
	}()
	for _, count := range []int{1, 1 << 10, 1 << 20} {
		buffer := make([]byte, 12*count)
		p, err := comms[0].Plan(Call{Kind: plan.AllReduce, Type: 7, Count: count, Send: buffer, Recv: buffer})
		require.NoError(t, err)
		assert.Equal(t, plan.Tree, p.Choice.Algorithm)
		assert.NotEqual(t, plan.LL, p.Choice.Protocol)
		p, err = comms[0].Plan(Call{Kind: plan.Broadcast, Type: 7, Count: count, Send: buffer, Recv: buffer})
		require.NoError(t, err)
		assert.Equal(t, plan.Ring, p.Choice.Algorithm)
		assert.Equal(t, plan.LL, p.Choice.Protocol)
	}
}

// TestABadValueIsNamedTogetherWithWhatIsAccepted makes communicators under one
// bad variable each.
func TestABadValueIsNamedTogetherWithWhatIsAccepted(t *testing.T) {
	for _, tc := range []struct{ name, value, accepted string }{
		{"ALGO", "rinq", "ring, tree"},
		{"ALGO", "p2p", "ring, tree"},
		{"ALGO", "ring;tree", "only the first entry"},
		{"ALGO", "broadcast:tree", "leaves no algorithm for broadcast"},
		{"PROTO", "ll129", "simple, ll, ll128"},
		{"PROTO", "gather:ll", "sendrecv"},
		{"WAIT", "sleep", "spin, yield, adaptive"},
		{"TIMEOUT", "90", "such as 90s"},
		{"TIMEOUT", "-1s", "0 and more"},
		{"MIN_NCHANNELS", "many", "whole numbers"},
		{"MIN_NCHANNELS", "-1", "1 to 2"},
		{"MIN_NCHANNELS", "65", "1 to 64"},
		{"MAX_NCHANNELS", "65", "1 to 64"},
		{"BUFFSIZE", "4M", "whole numbers"},
		{"BUFFSIZE", "511", "512 to 1073741824"},
		{"BUFFSIZE", "99999999999999999999", "whole numbers"},
		{"LL_BUFFSIZE", "1", "512 to"},
		{"LL128_BUFFSIZE", "1023", "1024 to"},
		{"P2P_CHUNKSIZE", "63", "64 to"},
		{"RANKS_PER_NODE", "-2", "0 and more"},
		{"TRANSPORT", "carrier-pigeon", "auto, inproc, shm and tcp"},
		{"PROXY", "fibre", "auto, thread and inline"},
		{"PROXY_CPUSET", "3-1", "0-3,8"},
		{"SOCKET_NTHREADS", "17", "0 to 16"},
		{"NSOCKS_PERTHREAD", "65", "0 to 64"},
		{"SOCKET_RATE", "fast", "whole numbers"},
		{"SOCKET_BUFFER", "-1", "4096 to"},
		{"PEER_TIMEOUT", "10ms", "1s and more"},
		{"TLS", "yes", "off, job and files"},
		{"TLS", "files", "TLSCert, TLSKey and TLSCA"},
		{"JOIN_TIMEOUT", "soon", "such as 90s"},
		{"PORTS", "nowhere", "nowhere"},
		{"DEBUG", "LOUD", "INFO"},
		{"TUNER_FILE", "there-is-none.csv", "no such file"},
		{"TUNER_FILE", "plan", "accepted are files"},
		{"TUNER_FILE", "env_test.go", "env_test.go:1: column 1"},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			t.Setenv(envPrefix+tc.name, tc.value)
			_, err := InitAll(2)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, envPrefix+tc.name+"="+tc.value)
			require.ErrorContains(t, err, tc.accepted)
			require.NotContains(t, err.Error(), "Config.", "the user has set a variable, not a field")
			require.Equal(t, 1, strings.Count(err.Error(), ErrInvalid.Error()), "one mistake is told once: %v", err)
			t.Log(err)
		})
	}
}

func TestAllMistakesInAConfigAreTold(t *testing.T) {
	t.Setenv("GOLLECTIVE_WAIT", "sleep")
	t.Setenv("GOLLECTIVE_LL_BUFFSIZE", "3")
	_, err := InitAllConfig(2, Config{
		Algorithm: plan.PointToPoint, Protocol: 99, Wait: 77, MinChannels: -1, MaxChannels: 65, Channels: -2,
		BuffSize: 1, LL128BuffSize: -5, P2PChunkSize: 1 << 30, RanksPerNode: -1, Timeout: -time.Second,
		Transport: "pigeon", JoinTimeout: -1, Ports: "x",
	})
	require.ErrorIs(t, err, ErrInvalid)
	for _, told := range []string{
		"GOLLECTIVE_WAIT=sleep: ", "GOLLECTIVE_LL_BUFFSIZE=3, accepted are 512 to",
		"Config.Algorithm is p2p, accepted are auto, ring, tree, oneshot and twoshot", "Config.Protocol is Protocol(99), accepted are auto, simple,",
		"Config.MinChannels is -1, accepted are 1 to 64", "Config.MaxChannels is 65, accepted are 1 to 64", "Config.Channels is -2, accepted are 0 to 64",
		"Config.BuffSize is 1, ", "Config.LL128BuffSize is -5, ", "Config.P2PChunkSize is 1073741824, ",
		"Config.Wait is policy(77), accepted are spin", "Config.RanksPerNode is -1, ", "Config.Timeout is -1s, ", `Config.Transport is "pigeon", `, "Config.JoinTimeout is -1ns, ", "Config.Ports: ",
	} {
		assert.ErrorContains(t, err, told)
	}
	t.Log(err)
	t.Setenv("GOLLECTIVE_WAIT", "")
	t.Setenv("GOLLECTIVE_LL_BUFFSIZE", "")
	_, err = InitAllConfig(2, Config{Channels: 65})
	require.EqualError(t, err, "invalid argument: Config.Channels is 65, accepted are 0 to 64")
	for _, n := range []int{0, -1} {
		_, err = InitAll(n)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, Run(n, func(*Comm) error { return nil }), ErrInvalid)
	}
}

func TestAnUnknownVariableWarnsOnce(t *testing.T) {
	t.Setenv("GOLLECTIVE_BUFSIZE", "4096")
	t.Setenv("GOLLECTIVE_TEST_SEED", "1")
	t.Setenv("GOLLECTIVE_TEST_ANYTHING", "1")
	t.Setenv("GOLLECTIVE_TESTS_MIN_BW", "1")
	t.Setenv("GOLLECTIVISM", "1")
	var log bytes.Buffer
	for range 3 {
		comms, err := InitAllConfig(1, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, comms[0].Close())
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "GOLLECTIVE_BUFSIZE")
	require.Contains(t, log.String(), "level=WARN")
}

// FuzzEnvironment makes configurations of arbitrary values: each is accepted with
// fields within their limits, or refused with an error that names it.
func FuzzEnvironment(f *testing.F) {
	for name := range variables {
		for _, value := range []string{"1", "0x200", "-1", "ring", "ll,simple;sendrecv:ll", "90s", "x", "9223372036854775808"} {
			f.Add(name, value)
		}
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	f.Fuzz(func(t *testing.T, name, value string) {
		if _, known := variables[name]; !known || value == "" {
			t.Skip("not a variable")
		}
		c, unreadable := Config{Logger: quiet}.applyEnviron([]string{envPrefix + name + "=" + value})
		c, unacceptable := c.withDefaults()
		for _, err := range []error{unreadable, unacceptable} {
			if err != nil && !strings.Contains(err.Error(), envPrefix+name+"="+value) {
				t.Fatalf("%v does not name %s=%q", err, name, value)
			}
		}
		if unreadable != nil || unacceptable != nil {
			return
		}
		w := c.world(0, 3, true, plan.SeesNothing)
		if _, err := plan.Choose(plan.Spec{Kind: plan.AllReduce, Type: 8, Count: 1000}, w); err != nil {
			t.Fatalf("%s=%q is accepted but nothing can be planned: %v", name, value, err)
		}
	})
}
