package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// freePort is a port that was free a moment ago: a command finds a host by the
// configured address, so the port has to be known beforehand.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func selfSigned(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// Commands find a host with a certificate for another name by the file, and
// authenticate with a token.
func TestTLSAndTokens(t *testing.T) {
	p := newPlace(t)
	cert, key := selfSigned(t, "projhost.example")
	p.write("cert.pem", cert)
	p.write("key.pem", key)
	address := freePort(t)
	p.write("config.toml", fmt.Sprintf(`
[http]
listen = %q
tls_cert = "cert.pem"
tls_key = "key.pem"
[[http.tokens]]
name = "reader"
sha256 = "%x"
roles = ["read"]
[[http.tokens]]
name = "app"
sha256_file = "app.sha256"
roles = ["append"]
[log]
format = "json"
`, address, sha256.Sum256([]byte("r3ad"))))
	p.write("app.sha256", fmt.Sprintf("%x\n", sha256.Sum256([]byte("4pp"))))
	h := p.host()
	require.Equal(t, "https://"+address, h.address)
	t.Setenv("PROJHOST_URL", "") // by the configuration alone

	p.run(`{"type":"T","data":1}`, "append", "a", "1").fails(exitFailed, "projhost: append to a/1: https://"+address+" wants a token: give it with --token or PROJHOST_TOKEN (unauthorized)\n")
	p.run(`{"type":"T","data":1}`, "append", "a", "1", "--token", "r3ad").fails(exitFailed, "projhost: append to a/1: token \"reader\" lacks the role \"append\" (forbidden)\n")
	p.run(`{"type":"T","data":1}`, "append", "a", "1", "--token", "4pp").ok()
	t.Setenv("PROJHOST_TOKEN", "r3ad")
	require.Contains(t, p.run("", "status").ok(), "events  events      0    1                1    0         1\n")
	// doctor needs no token: the host itself says whether it is ready.
	require.Contains(t, p.run("", "doctor").ok(), "the host is ready, its store answers")
	require.Regexp(t, `warn +consumers +not looked at: https://\S+ wants a token`, p.run("", "doctor", "--token", "wr0ng").ok())

	// By its address alone the certificate is not believed, nor is another one.
	o := p.run("", "status", "--url", h.address)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "certificate")
	other, _ := selfSigned(t, "projhost.example")
	p.write("cert.pem", other)
	p.run("", "status").fails(exitFailed, "projhost: no host answers at "+address+": start one with projhost run, or name another with --url\n")
	h.end()

	p.write("config.toml", "[http]\nlisten = \"127.0.0.1:0\"\ntls_cert = \"cert.pem\"\ntls_key = \"nope.pem\"\n")
	o = p.run("", "run")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "http.tls_cert: open nope.pem: no such file or directory")
}

func TestStatusIsWatched(t *testing.T) {
	p := newPlace(t)
	p.write("config.toml", hostConfigText)
	h := p.host()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"status", "--watch", "--json"}, strings.NewReader(""), w, io.Discard)
		_ = w.Close()
	}()
	buf := make([]byte, 1<<16)
	for range 2 {
		n, err := r.Read(buf)
		require.NoError(t, err)
		require.Contains(t, string(buf[:n]), `{"instance_id":"`)
	}
	cancel()
	_, _ = io.Copy(io.Discard, r)
	require.Equal(t, exitOK, <-code)
	h.end()
}

func TestListenerIsTaken(t *testing.T) {
	p := newPlace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p.write("config.toml", fmt.Sprintf("[http]\nlisten = %q\n", l.Addr()))
	o := p.run("", "run")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, fmt.Sprintf("projhost: http.listen: %s is in use by another process: stop that, or choose another port\n", l.Addr()), o.stderr)
	require.Contains(t, p.run("", "doctor").stdout, fmt.Sprintf("fail  address      %s is in use by what is no projhost\n", l.Addr()))
}
