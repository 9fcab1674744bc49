package flagrange

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestValuesOutsideOfTheRangeAreErrors(t *testing.T) {
	var rate float64
	var step time.Duration
	var seed int64
	var files int
	f := pflag.NewFlagSet("x", pflag.ContinueOnError)
	Float(f, &rate, "rate", 1, 0, 1e6, "rate")
	Duration(f, &step, "step", 0, 0, time.Hour, "step")
	Int64(f, &seed, "seed", 1, -5, 5, "seed")
	Int(f, &files, "files", "f", 4, 1, 10, "files")
	for flag, values := range map[string]string{
		"rate": "NaN nan Inf -Inf +Inf 1e400 -1 1000001 1e6.5 0x1p30 much", "step": "-1s 61m 1000000h 1 9e9s NaN", "seed": "-6 6 9223372036854775808 1.5 NaN", "files": "0 11 NaN",
	} {
		for v := range strings.FieldsSeq(values) {
			if err := f.Parse([]string{"--" + flag + "=" + v}); err == nil || !strings.Contains(err.Error(), "want ") {
				t.Errorf("--%s %s: %v", flag, v, err)
			}
		}
	}
	if rate != 1 || step != 0 || seed != 1 || files != 4 {
		t.Errorf("refused values were stored: %v %v %v %v", rate, step, seed, files)
	}
	if err := f.Parse([]string{"--rate", "0.5", "--step=1h", "--seed=-5", "-f", "10"}); err != nil || rate != 0.5 || step != time.Hour || seed != -5 || files != 10 {
		t.Errorf("%v: %v %v %v %v", err, rate, step, seed, files)
	}
	if text := f.FlagUsages(); strings.Contains(text, "default 0") || !strings.Contains(text, "--rate float ") || !strings.Contains(text, "-f, --files int ") {
		t.Errorf("help:\n%s", text)
	}
}
