package handshake

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// selfSigned is TLS whose ends accept only a certificate made in the same call.
func selfSigned(t *testing.T) *tls.Config {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	require.NoError(t, err)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
		MinVersion:   tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if !bytes.Equal(s.PeerCertificates[0].Raw, der) {
				return errors.New("another certificate")
			}
			return nil
		},
	}
}

// overheard keeps what is written to a connection.
type overheard struct {
	net.Conn
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *overheard) Write(b []byte) (int, error) {
	o.mu.Lock()
	o.text.Write(b)
	o.mu.Unlock()
	return o.Conn.Write(b)
}

// gated is a gate with these terms, and what it lets in.
func gated(t *testing.T, terms Terms) (*Gate, chan net.Conn) {
	in := make(chan net.Conn, 1)
	g := NewGate(GateConfig{Log: slog.New(slog.DiscardHandler), Terms: terms, Enter: func(c net.Conn, body []byte) { in <- c }})
	t.Cleanup(g.Close)
	return g, in
}

func TestWhatFollowsTheProofsIsEncrypted(t *testing.T) {
	terms := terms()
	terms.TLS = selfSigned(t)
	g, in := gated(t, terms)
	a, b := pipe(t)
	g.Admit(b)
	o := &overheard{Conn: a}
	_, err := terms.Greet(o, []byte(aBody))
	require.NoError(t, err)
	out, err := terms.Secure(o, true)
	require.NoError(t, err)
	came := <-in
	const secret = "nobody may read this"
	_, err = io.WriteString(out, secret)
	require.NoError(t, err)
	got := make([]byte, len(secret))
	_, err = io.ReadFull(came, got)
	require.NoError(t, err)
	require.Equal(t, secret, string(got))
	require.Contains(t, o.text.String(), aBody, "the hello is not")
	require.NotContains(t, o.text.String(), secret)
	require.NoError(t, out.Close())
	_, err = came.Read(got)
	require.Equal(t, io.EOF, err)
	require.NoError(t, came.Close())
}

func TestBothSidesMustWantTLS(t *testing.T) {
	one, other := selfSigned(t), selfSigned(t)
	for _, tc := range []struct {
		name              string
		dialler, listener *tls.Config
		text              string
	}{
		{"the dialler alone", one, nil, "has TLS off"},
		{"the listener alone", nil, one, "wants TLS"},
		{"with certificates that don't fit", one, other, "another certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			listener, dialler := terms(), terms()
			listener.TLS, dialler.TLS = tc.listener, tc.dialler
			g, in := gated(t, listener)
			a, b := pipe(t)
			g.Admit(b)
			_, err := dialler.Greet(a, []byte(aBody))
			if tc.dialler != nil && tc.listener != nil {
				require.NoError(t, err)
				_, err = dialler.Secure(a, true)
			}
			require.ErrorIs(t, err, ErrTLS)
			require.ErrorContains(t, err, tc.text)
			a.Close()
			require.Eventually(t, func() bool { _, turned := g.Crowd(); return turned == 1 }, 10*time.Second, time.Millisecond)
			require.Empty(t, in)
		})
	}
}

// What the other side has not said is no disagreement: worth another attempt.
func TestAnEndWithinTLSIsNoRefusal(t *testing.T) {
	terms := terms()
	terms.TLS = selfSigned(t)
	a, b := pipe(t)
	go func() {
		io.ReadFull(b, make([]byte, 5)) // the beginning of TLS
		b.Close()
	}()
	_, err := terms.Secure(a, true)
	require.True(t, IsReset(err), "%v", err)
	require.NotErrorIs(t, err, ErrTLS)
}

// A dialler that stops in the middle of TLS is a stranger like any other.
func TestTLSIsBoundedInTime(t *testing.T) {
	t.Parallel() // it mostly waits
	terms := terms()
	terms.TLS = selfSigned(t)
	g, in := gated(t, terms)
	a, b := pipe(t)
	g.Admit(b)
	_, err := terms.Greet(a, []byte(aBody))
	require.NoError(t, err)
	a.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = io.Copy(io.Discard, a)
	require.NoError(t, err, "hung up on")
	require.Empty(t, in)
}

func TestUnixSocketsAreNotEncrypted(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	terms := terms()
	terms.TLS = selfSigned(t)
	require.Nil(t, terms.Over(conn).TLS)
	same, err := terms.Over(conn).Secure(conn, true)
	require.NoError(t, err)
	require.Equal(t, conn, same)
	a, _ := pipe(t)
	require.NotNil(t, terms.Over(a).TLS)
}
