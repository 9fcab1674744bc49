package sdktest

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/fixture"
)

func TestReadRequestReturnsWhatWasDumped(t *testing.T) {
	want := NewRequest("zone-a", map[string]int{"zone-a": 2}, Watched(Ready("zone-a"), 1, 2, 3), Local("zone-a"))
	text, err := (&fixture.Fixture{Plugin: "p", Request: *want}).Format()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ReadRequest(t, file); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
