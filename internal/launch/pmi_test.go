package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// healthy are the answers of a launcher that behaves.
var healthy = map[string]string{
	"init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0", "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=8 vallen_max=16",
	"get_my_kvsname": "cmd=my_kvsname kvsname=k", "put": "cmd=put_result rc=0 msg=success",
	"get": "cmd=get_result rc=0 msg=success value=a=b==", "barrier_in": "cmd=barrier_out", "finalize": "cmd=finalize_ack",
}

// double is the launcher's end of a connection: it answers each command from
// answers, else as a healthy launcher. "" is silence, "close" ends the
// connection. It returns the commands it has read, once the other end closes.
func double(answers map[string]string) (net.Conn, <-chan []string) {
	ours, theirs := net.Pipe()
	heard := make(chan []string, 1)
	go func() {
		defer theirs.Close()
		var commands []string
		for in := bufio.NewScanner(theirs); in.Scan(); {
			command, _, _ := strings.Cut(strings.TrimPrefix(in.Text(), "cmd="), " ")
			commands = append(commands, command)
			answer, special := answers[command]
			if !special {
				answer = healthy[command]
			}
			if answer == "close" {
				break
			}
			if answer != "" {
				fmt.Fprint(theirs, answer+"\n")
			}
		}
		heard <- commands
	}()
	return ours, heard
}

func TestPMISession(t *testing.T) {
	conn, heard := double(nil)
	ctx := context.Background()
	store, err := openPMI(ctx, conn, 0, 2)
	require.NoError(t, err)
	require.NoError(t, store.Put(ctx, "key", "value"))
	require.NoError(t, store.Barrier(ctx))
	value, err := store.Get(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, "a=b==", value)

	for _, kv := range [][2]string{{"", "v"}, {"12345678", "v"}, {"a b", "v"}, {"a=b", "v"}, {"a\n", "v"}, {"k", ""}, {"k", "a b"}, {"k", "é"}, {"k", strings.Repeat("x", 16)}} {
		require.ErrorIs(t, store.Put(ctx, kv[0], kv[1]), ErrValue, "%q", kv)
	}
	require.NoError(t, store.Put(ctx, "1234567", strings.Repeat("x", 15)), "what was refused was not sent")
	require.NoError(t, store.Close())
	require.NoError(t, store.Close())
	require.ErrorIs(t, store.Barrier(ctx), ErrLauncher)
	require.Equal(t, []string{"init", "get_maxes", "get_my_kvsname", "put", "barrier_in", "get", "put", "finalize"}, <-heard)
}

func TestPMIBadAnswers(t *testing.T) {
	for _, tc := range []struct{ name, command, answer, says string }{
		{"refused version", "init", "cmd=response_to_init rc=-1 msg=no", "refuses version 1.1"},
		{"another answer", "init", "cmd=barrier_out", "init: waiting for response_to_init"},
		{"not PMI", "init", "HTTP/1.1 400 Bad Request", "not an answer of PMI-1"},
		{"empty line", "init", "\n", "not an answer of PMI-1"},
		{"binary", "init", "cmd=response_to_init\x00", "not printable"},
		{"too long", "init", "cmd=" + strings.Repeat("x", longestLine), "longer than"},
		{"twice", "get_maxes", "cmd=maxes keylen_max=1 keylen_max=2", "appears twice"},
		{"more than asked", "init", "cmd=response_to_init\ncmd=maxes keylen_max=9 vallen_max=9", "more than it was asked for"},
		{"limits missing", "get_maxes", "cmd=maxes", "max is"},
		{"limits negative", "get_maxes", "cmd=maxes keylen_max=-1 vallen_max=9", "max is"},
		{"no name", "get_my_kvsname", "cmd=my_kvsname", "the name is"},
		{"put refused", "put", "cmd=put_result rc=-1 msg=full", "put of key key"},
		{"barrier refused", "barrier_in", "cmd=barrier_out rc=1", "barrier"},
		{"get without value", "get", "cmd=get_result rc=0", "no value"},
		{"closed", "barrier_in", "close", "barrier_in: the launcher closed the connection while this rank waited for all 3 ranks"},
		{"closed at once", "init", "close", "closed the connection"},
		{"silent", "barrier_in", "", "for all 3 ranks to enter the launcher's barrier (this is rank 1)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn, heard := double(map[string]string{tc.command: tc.answer})
			ctx, cancel := context.WithCancel(context.Background())
			if tc.answer == "" {
				ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
			}
			defer cancel()
			store, err := openPMI(ctx, conn, 1, 3)
			if err == nil {
				err = useStore(ctx, store)
				require.ErrorIs(t, store.Barrier(context.Background()), ErrLauncher, "the store is dead")
				require.NoError(t, store.Close())
			}
			require.ErrorIs(t, err, ErrLauncher)
			require.ErrorContains(t, err, tc.says)
			if tc.answer == "" {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			require.NoError(t, conn.Close(), "it was left open")
			commands := <-heard
			require.Equal(t, tc.command, commands[len(commands)-1], "nothing is sent after an error")
		})
	}
}

func useStore(ctx context.Context, store KVS) error {
	if err := store.Put(ctx, "key", "value"); err != nil {
		return err
	}
	if err := store.Barrier(ctx); err != nil {
		return err
	}
	_, err := store.Get(ctx, "key")
	return err
}

func TestPMIKeyNobodyPutLeavesTheStoreAlive(t *testing.T) {
	conn, _ := double(map[string]string{"get": "cmd=get_result rc=-1 msg=key_x_not_found value=unknown"})
	ctx := context.Background()
	store, err := openPMI(ctx, conn, 0, 1)
	require.NoError(t, err)
	_, err = store.Get(ctx, "x")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, store.Barrier(ctx))
	require.NoError(t, store.Close())
}

func TestPMICancelledContextEndsABarrier(t *testing.T) {
	conn, _ := double(map[string]string{"barrier_in": ""})
	store, err := openPMI(context.Background(), conn, 0, 2)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Barrier(ctx) }()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, store.Close())
	require.NoError(t, conn.Close(), "it was left open")
}

// An id that the launcher can't hold is every rank's error, not a wait.
func TestPublishOfTooLongAValueFails(t *testing.T) {
	conn, heard := double(map[string]string{"get_maxes": "cmd=maxes keylen_max=64 vallen_max=600"})
	ctx := context.Background()
	store, err := openPMI(ctx, conn, 0, 2)
	require.NoError(t, err)
	_, err = Publish(ctx, store, 0, "key", func() (string, error) { return strings.Repeat("x", 600), nil })
	require.ErrorIs(t, err, ErrValue)
	require.NoError(t, store.Close())
	require.Equal(t, []string{"put", "barrier_in", "finalize"}, (<-heard)[3:])
}

func TestPublishedRejectsWhatIsNotOurs(t *testing.T) {
	for _, entry := range []string{"other", "v:***", "e:***", "x:YQ"} {
		conn, _ := double(map[string]string{"get": "cmd=get_result rc=0 value=" + entry})
		store, err := openPMI(context.Background(), conn, 1, 2)
		require.NoError(t, err)
		_, err = Publish(context.Background(), store, 1, "key", nil)
		require.ErrorIs(t, err, ErrLauncher, entry)
		require.NoError(t, store.Close())
	}
}

// A descriptor of this program's own is never taken for the launcher's.
func TestOwnDescriptorIsNotTaken(t *testing.T) {
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	_, err = takeDescriptor(int(file.Fd()))
	require.Error(t, err)
	_, err = file.Stat()
	require.NoError(t, err, "it is still open")
	_, err = takeDescriptor(1 << 20)
	require.ErrorContains(t, err, "not open")
}

func FuzzPMIReply(f *testing.F) {
	for _, answer := range healthy {
		f.Add(answer)
	}
	f.Add("cmd=get_result rc=-1 msg=key_k1_not_found value=unknown")
	f.Add("cmd= cmd=x =y")
	f.Fuzz(func(t *testing.T, line string) {
		reply, err := parsePMI(line)
		if err != nil {
			return
		}
		// What was accepted holds the line's words and nothing else.
		words := strings.Fields(line)
		require.Len(t, reply, len(words))
		for _, w := range words {
			name, value, _ := strings.Cut(w, "=")
			require.Equal(t, value, reply[name])
		}
		require.Equal(t, "cmd="+reply["cmd"], words[0])
	})
}

// Whatever a launcher answers, a session ends in a value or an error, and never
// in a panic or a wait without end.
func FuzzPMISession(f *testing.F) {
	f.Add("cmd=response_to_init rc=0\ncmd=maxes keylen_max=64 vallen_max=1024\ncmd=my_kvsname kvsname=k\ncmd=put_result rc=0\ncmd=barrier_out\ncmd=get_result rc=0 value=v\n")
	f.Add("cmd=response_to_init\x01cmd=maxes keylen_max=9 vallen_max=9\ncmd=my_kvsname kvsname=k\n")
	f.Add("cmd=response_to_init\ncmd=maxes keylen_max=1 vallen_max=1\n")
	f.Fuzz(func(t *testing.T, answers string) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		go func() {
			defer theirs.Close()
			in := bufio.NewScanner(theirs)
			for answer := range strings.Lines(answers) {
				if !in.Scan() {
					return
				}
				// A byte 1 stands for a line more than was asked for.
				fmt.Fprint(theirs, strings.ReplaceAll(strings.TrimSuffix(answer, "\n"), "\x01", "\n")+"\n")
			}
			in.Scan()
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		store, err := openPMI(ctx, ours, 0, 2)
		if err != nil {
			require.ErrorIs(t, err, ErrLauncher)
			require.NoError(t, ctx.Err(), "the session waited for nothing")
			return
		}
		_ = useStore(ctx, store)
		_ = store.Close()
		require.NoError(t, ctx.Err(), "the session waited for nothing")
	})
}

func FuzzNodes(f *testing.F) {
	for _, list := range []string{"node[01-03,7],login", "r[1-2]n[0-1]x", "a[", "n[0-9999999999]", "a,,b"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		made := 0
		for name, err := range Nodes(list) {
			if err != nil {
				break
			}
			if name == "" || strings.ContainsAny(name, "[], \n") {
				t.Fatalf("%q makes the name %q", list, name)
			}
			if made++; made > 1000 {
				break
			}
		}
		if first, err := FirstNode(list); err == nil && made == 0 {
			t.Fatalf("%q: first node %q, no nodes", list, first)
		}
	})
}

// FuzzEnvironment: any set of variables gives a world within bounds, or one of
// the package's errors.
func FuzzEnvironment(f *testing.F) {
	for _, settings := range []string{"", torch, ompi, pmiFD, srun, pod, own + "GOLLECTIVE_ROOT=h:9", torch + srun, ompi + "OMPI_MCA_orte_hnp_uri=7.0;tcp://10.2.0.1:4089"} {
		f.Add(settings)
	}
	f.Fuzz(func(t *testing.T, settings string) {
		if strings.Contains(settings, "PMI_ID") {
			return // would connect to wherever PMI_PORT says
		}
		w, err := found(Explicit{}, settings, settings)
		if err != nil {
			for _, is := range []error{ErrIncomplete, ErrConflict, ErrValue, ErrNoRendezvous} {
				if errors.Is(err, is) {
					return
				}
			}
			t.Fatalf("%q: %v", settings, err)
		}
		if w.Rank < 0 || w.Rank >= w.Size || w.Size > maxSize || w.LocalRank >= max(w.LocalSize, 1) {
			t.Fatalf("%q: %+v", settings, w)
		}
		if w.Size > 1 && w.Rendezvous.Kind == Alone {
			t.Fatalf("%q: %v has nowhere to meet", settings, w)
		}
		for _, address := range w.Rendezvous.Addresses {
			if err := checkAddress("address", address); err != nil {
				t.Fatalf("%q: %v", settings, err)
			}
		}
	})
}
