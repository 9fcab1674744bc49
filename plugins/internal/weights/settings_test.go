package weights

import (
	"strconv"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
)

func TestListOutsideItsLengthIsNamed(t *testing.T) {
	for n, want := range map[int]string{0: "a[1].b: 0 b, want 1 to 3", 1: "", 3: "", 4: "a[1].b: 4 b, want 1 to 3"} {
		got := ""
		if err := CheckLen("a[1].b", n, 3); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestDurationsAreInWholeSeconds(t *testing.T) {
	for text, want := range map[string]string{
		`"30s"`: "30", `"1m30s"`: "90", `"1s500ms500ms"`: "2", "null": "7", `"1s500ms"`: "hold: 1s500ms is not in whole seconds",
		`"500ms"`: "hold: 500ms is not 1s to 2m", `"2m1s"`: "hold: 2m1s is not 1s to 2m", "30": "hold: want a duration such as 30s or 1m30s, got a number",
	} {
		n := int64(7)
		err := sdk.ParseSettings([]byte(`{"hold":`+text+`}`), func(f *sdk.Fields) { Seconds(f, "hold", &n, 1, 120) })
		if got := strconv.FormatInt(n, 10); err == nil && got != want || err != nil && (err.Error() != want || n != 7) {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}
