package abi

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSHA256EqualsTheStandardLibrary(t *testing.T) {
	for n := range 300 {
		b := bytes.Repeat([]byte{byte(n), 0xA5, byte(n * 7)}, n)[:n]
		require.Equal(t, sha256.Sum256(b), sha256Sum(b), "%d bytes", n)
	}
}
