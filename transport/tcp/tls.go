package tcp

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

// JobTLS is for a job whose processes have nothing but its secret: all of them show,
// and want to see, the one key that follows from it. It serves for both ends of a
// connection.
func JobTLS(secret []byte) (*tls.Config, error) {
	if len(secret) == 0 {
		return nil, errors.New("tcp: TLS of a job without a secret")
	}
	seed, err := hkdf.Key(sha256.New, secret, nil, "gollective TLS key", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	// Clocks don't matter: the key is good for as long as the job is.
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "gollective job"},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // "none", in RFC 5280
	}
	signed, err := x509.CreateCertificate(rand.Reader, certificate, certificate, public, key)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	return mutual(tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, func(s tls.ConnectionState) error {
		// That the peer has the private key is what the handshake has shown.
		if theirs, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !theirs.Equal(public) {
			return errors.New("the certificate is not that of this job")
		}
		return nil
	}), nil
}

// FilesTLS is for processes that have certificates: cert and key are PEM files of
// this one's, ca of the authorities whose certificates it accepts. Names and usages in
// the certificates are not looked at: who belongs to the job is for the authority,
// and the job's secret, to say. It serves for both ends of a connection.
func FilesTLS(cert, key, ca string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tcp: TLS certificate %s with key %s: %w", cert, key, err)
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("tcp: TLS authorities: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("tcp: TLS authorities: %s holds no certificate", ca)
	}
	return mutual(own, func(s tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
			Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		return err
	}), nil
}

// mutual has both ends show a certificate, and verify decide on the other's.
func mutual(own tls.Certificate, verify func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		MinVersion:   tls.VersionTLS13,
		ClientAuth:   tls.RequireAnyClientCert,
		// The usual verification asks for names; verify, which is called for every
		// connection, takes its place.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate")
			}
			return verify(s)
		},
		// Connections are few and long: nothing is resumed, and records are large
		// from the beginning.
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
}
