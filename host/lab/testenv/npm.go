package testenv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// NPM requires the packages of a package-lock.json in npm's cache in the user's cache, where .ci/deps puts them, and makes npm
// use that for the rest of the test, without the network.
func NPM(t testing.TB, lock string) {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(user, "sluice", "npm")
	want, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(cache, filepath.Base(lock))); err != nil || !bytes.Equal(got, want) {
		Require(t, fmt.Errorf("the packages of %s are not in %s: .ci/deps fetches them", lock, cache))
	}
	t.Setenv("npm_config_cache", cache)
	t.Setenv("npm_config_offline", "true")
}
