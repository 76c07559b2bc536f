package tcp

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gollective/gollective/internal/handshake"
	"github.com/gollective/gollective/internal/netlab"
)

func jobTLS(t testing.TB, secret string) *tls.Config {
	t.Helper()
	c, err := JobTLS([]byte(secret))
	require.NoError(t, err)
	return c
}

func encrypted(secure *tls.Config) func(*PortConfig) {
	return func(c *PortConfig) { c.TLS = secure }
}

// authority is the files of a certificate authority and of what it has signed.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{dir: t.TempDir()}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	require.NoError(t, err)
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name), text, 0o600))
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// sign makes NAME.pem and NAME-key.pem, good until then.
func (a *authority) sign(t *testing.T, name string, until time.Time) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	a.write(t, name+".pem", "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	a.write(t, name+"-key.pem", "EC PRIVATE KEY", der)
	c, err := FilesTLS(a.file(name+".pem"), a.file(name+"-key.pem"), a.file("ca.pem"))
	require.NoError(t, err)
	return c
}

// Who may talk to whom, and that it ends with a clear error when they may not.
func TestTLSIsAgreedOn(t *testing.T) {
	leavesNothing(t)
	ours, theirs := newAuthority(t), newAuthority(t)
	hour := time.Now().Add(time.Hour)
	job, one, two := jobTLS(t, jobSecret), ours.sign(t, "one", hour), ours.sign(t, "two", hour)
	for _, tc := range []struct {
		name              string
		dialler, listener *tls.Config
		want              error
		text              string
	}{
		{"keys of the job", job, jobTLS(t, jobSecret), nil, ""},
		{"keys of two jobs", job, jobTLS(t, "another"), handshake.ErrTLS, "not that of this job"},
		{"certificates of one authority", one, two, nil, ""},
		{"of two authorities", one, theirs.sign(t, "stranger", hour), handshake.ErrTLS, "unknown authority"},
		{"expired at the dialler", ours.sign(t, "old", time.Now().Add(-time.Minute)), one, handshake.ErrTLS, "bad certificate"},
		{"expired at the listener", one, ours.sign(t, "older", time.Now().Add(-time.Minute)), handshake.ErrTLS, "expired"},
		{"a certificate for a job's key", one, job, handshake.ErrTLS, "certificate"},
		{"the dialler alone", job, nil, handshake.ErrTLS, "has TLS off"},
		{"the listener alone", nil, job, handshake.ErrTLS, "wants TLS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := openPort(t, encrypted(tc.dialler)), openPort(t, encrypted(tc.listener))
			came := serve(t, b, "world")
			out, err := a.Dial(within(t, time.Minute), b.Addresses(), Greeting{"world", someLink})
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
				require.ErrorContains(t, err, tc.text)
				require.Empty(t, came)
				return
			}
			require.NoError(t, err)
			in := came.next(t).bundle
			sent, got := []byte("secrets"), make([]byte, 7)
			require.NoError(t, sendAll(out.main, sent))
			require.NoError(t, receiveAll(in.main, got))
			require.Equal(t, sent, got)
			require.NoError(t, out.close())
			require.Equal(t, io.EOF, ending(t, in.main))
			require.NoError(t, in.close())
		})
	}
}

func TestTLSFilesThatAreNone(t *testing.T) {
	a := newAuthority(t)
	a.sign(t, "one", time.Now().Add(time.Hour))
	cert, key, ca := a.file("one.pem"), a.file("one-key.pem"), a.file("ca.pem")
	for name, files := range map[string][3]string{
		"no certificate":     {a.file("none"), key, ca},
		"no key":             {cert, a.file("none"), ca},
		"another's key":      {ca, key, ca},
		"no authority":       {cert, key, a.file("none")},
		"a key as authority": {cert, key, key},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FilesTLS(files[0], files[1], files[2])
			require.Error(t, err)
		})
	}
	_, err := JobTLS(nil)
	require.Error(t, err)
}

// The bytes arrive as over any other stream, and none of them can be read on the way.
func TestPayloadsOverTLS(t *testing.T) {
	leavesNothing(t)
	random, seed := seeded(t)
	for _, shape := range [][2]int{{0, 0}, {2, 2}} {
		t.Run(fmt.Sprintf("threads=%d", shape[0]), func(t *testing.T) {
			f := &Faults{Seed: seed, Short: 0.1, Interrupt: 0.1, Again: 0.1}
			secure := jobTLS(t, jobSecret)
			a := openPort(t, func(c *PortConfig) { c.TLS, c.Threads, c.SocketsPerThread, c.Faults = secure, shape[0], shape[1], f })
			b := openPort(t, encrypted(secure))
			came := serve(t, b, "world")
			out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
			require.NoError(t, err)
			in := came.next(t).bundle
			for _, size := range []int{1, leastTask, 4*leastTask + 1, 1 + random.IntN(4<<20)} {
				sent, got := randomBytes(random, size), make([]byte, size)
				in.beginRead(got)
				out.beginWrite(sent)
				for written, read := false, false; !written || !read; time.Sleep(time.Microsecond) {
					if !written {
						written, err = out.advanceWrite()
						require.NoError(t, err)
					}
					if !read {
						read, err = in.advanceRead()
						require.NoError(t, err)
					}
				}
				require.True(t, bytes.Equal(sent, got), "%d bytes", size)
			}
			require.NoError(t, out.close())
			require.NoError(t, in.close())
		})
	}
}

// What has been written is sent although the stream and its port are closed at once.
func TestTLSDeliversWhatWasWritten(t *testing.T) {
	leavesNothing(t)
	secure := jobTLS(t, jobSecret)
	b := openPort(t, encrypted(secure))
	came := serve(t, b, "world")
	for range 10 {
		a := openPort(t, encrypted(secure))
		out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
		require.NoError(t, err)
		in := came.next(t).bundle
		sent := make([]byte, 100_000)
		for i := range sent {
			sent[i] = byte(i * 7)
		}
		require.NoError(t, sendAll(out.main, sent))
		require.NoError(t, out.close())
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		got := make([]byte, len(sent))
		require.NoError(t, receiveAll(in.main, got))
		require.True(t, bytes.Equal(sent, got))
		require.Equal(t, io.EOF, ending(t, in.main))
		require.NoError(t, in.close())
		require.NoError(t, <-closed)
	}
}

// A reader that does not read holds a writer up, and nothing else: memory is
// bounded, and both can be closed.
func TestTLSWithAPeerThatDoesNotRead(t *testing.T) {
	leavesNothing(t)
	secure := jobTLS(t, jobSecret)
	a, b := openPort(t, encrypted(secure)), openPort(t, encrypted(secure))
	came := serve(t, b, "world")
	out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
	require.NoError(t, err)
	in := came.next(t).bundle
	p := newTestPoller(t)
	require.NoError(t, p.interest(out.main.descriptor(), true, true))
	require.Eventually(t, func() bool { // the system may find room for some time
		fillUp(t, out.main)
		fds, err := p.wait(10 * time.Millisecond)
		return err == nil && len(fds) == 0
	}, 30*time.Second, time.Millisecond, "no room, and it does not say so")
	require.NoError(t, p.interest(in.main.descriptor(), true, false))
	fds, err := p.wait(10 * time.Second)
	require.NoError(t, err)
	require.Equal(t, []int{in.main.descriptor()}, fds)
	for _, x := range []*bundle{out, in} {
		require.NoError(t, p.interest(x.main.descriptor(), false, false))
		require.NoError(t, x.close())
	}
}

// Connections whose owners forget them end with the port, idle or full.
func TestAPortEndsItsTunnels(t *testing.T) {
	leavesNothing(t)
	secure := jobTLS(t, jobSecret)
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			t.Parallel() // it mostly waits
			a, b := openPort(t, encrypted(secure)), openPort(t, encrypted(secure))
			came := serve(t, b, "world")
			out, err := a.Dial(within(t, 20*time.Second), b.Addresses(), Greeting{"world", someLink})
			require.NoError(t, err)
			in := came.next(t).bundle
			if full {
				fillUp(t, out.main)
			}
			closed := make(chan error, 2)
			for _, p := range []*Port{a, b} {
				go func() { closed <- p.Close() }()
			}
			require.NoError(t, errors.Join(<-closed, <-closed))
			require.Error(t, ending(t, out.main))
			require.ErrorIs(t, ending(t, in.main), net.ErrClosed)
			require.NoError(t, out.close())
			require.NoError(t, in.close())
		})
	}
}

func TestASilentHostIsLostOverTLS(t *testing.T) {
	t.Parallel() // it mostly waits
	l := netlab.New(t, 2)
	listener, err := l.Host(1).Listen(":7000")
	require.NoError(t, err)
	defer listener.Close()
	x, err := l.Host(0).Dial(net.JoinHostPort(l.Host(1).Address().String(), "7000"), 10*time.Second)
	require.NoError(t, err)
	y, err := listener.Accept()
	require.NoError(t, err)
	p := openPort(t, func(c *PortConfig) { c.PeerTimeout = time.Second; c.TLS = jobTLS(t, jobSecret) })
	server := make(chan stream, 1)
	go func() {
		defer close(server)
		if c, err := p.terms.Secure(y, false); assert.NoError(t, err) {
			s, err := p.take(c)
			assert.NoError(t, err)
			server <- s
		}
	}()
	c, err := p.terms.Secure(x, true)
	require.NoError(t, err)
	s, err := p.take(c)
	require.NoError(t, err)
	other := <-server
	require.NotNil(t, other)
	l.Cut([]int{0}, []int{1})
	require.NoError(t, sendAll(s, make([]byte, 1000)))
	require.ErrorIs(t, ending(t, s), unix.ETIMEDOUT)
	_, err = s.write([][]byte{{1}})
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	require.NoError(t, s.close())
	require.ErrorIs(t, ending(t, other), unix.ETIMEDOUT, "keepalives found it")
	require.NoError(t, other.close())
}

func BenchmarkTLS(b *testing.B) {
	secure := jobTLS(b, jobSecret)
	x, y := openPort(b, encrypted(secure)), openPort(b, encrypted(secure))
	came := serve(b, y, "world")
	out, err := x.Dial(within(b, 20*time.Second), y.Addresses(), Greeting{"world", someLink})
	require.NoError(b, err)
	in := came.next(b).bundle
	sent, got := make([]byte, 1<<20), make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		in.beginRead(got)
		out.beginWrite(sent)
		for written, read := false, false; !written || !read; time.Sleep(time.Microsecond) {
			if !written {
				written, _ = out.advanceWrite()
			}
			if !read {
				read, _ = in.advanceRead()
			}
		}
	}
	b.StopTimer()
	require.NoError(b, out.close())
	require.NoError(b, in.close())
}
