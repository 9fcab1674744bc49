// Package weights has what the bundled plugins share: groups of endpoints by zone or label, fair parts, hashes, and checks of settings.
package weights

import (
	"errors"
	"strconv"
	"strings"
)

// CheckLen returns an error that names the field of the settings, a list, if it is empty or has more than most elements.
func CheckLen(field string, n, most int) error {
	if n == 0 || n > most {
		return errors.New(field + ": " + strconv.Itoa(n) + " " + field[strings.LastIndexByte(field, '.')+1:] + ", want 1 to " + strconv.Itoa(most))
	}
	return nil
}
