// Package weights has what the bundled plugins share: groups of endpoints by zone or label, fair parts, hashes, and checks of
// settings.
package weights

import (
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/sdk"
)

// CheckLen returns an error that names the field of the settings, a list, if it is empty or has more than most elements.
func CheckLen(field string, n, most int) error {
	if n == 0 || n > most {
		return errors.New(field + ": " + strconv.Itoa(n) + " " + field[strings.LastIndexByte(field, '.')+1:] + ", want 1 to " + strconv.Itoa(most))
	}
	return nil
}

// Seconds declares a duration from least to most seconds. It is in whole seconds, as the times of requests are.
func Seconds(f *sdk.Fields, name string, into *int64, least, most int64) {
	d := sdk.Duration(-1)
	f.Duration(name, &d, sdk.Duration(least)*sdk.Second, sdk.Duration(most)*sdk.Second)
	switch {
	case d%sdk.Second > 0:
		f.Fail(name, d.String()+" is not in whole seconds")
	case d >= 0:
		*into = int64(d / sdk.Second)
	}
}
