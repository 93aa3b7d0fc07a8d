package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who asks a host that is not ready is told why.
func TestNotReadySaysWhy(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":{"code":"not_ready","message":"the host is not ready","reasons":["store: table \"t\" is missing","a:\n\tb"]}}`))
	}))
	t.Cleanup(srv.Close)
	err := (&client{base: srv.URL, http: srv.Client()}).get(t.Context(), "/readyz", nil, nil)
	require.EqualError(t, err, `the host is not ready: store: table "t" is missing; a: b (not_ready)`)
}
