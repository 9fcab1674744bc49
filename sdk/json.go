package sdk

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// digits are the characters that a JSON number begins with.
const digits = "-0123456789"

// maxDepth is how deep JSON may be nested, as in encoding/json.
const maxDepth = 10000

// checkJSON returns an error unless text is one JSON value (RFC 8259). All functions below rely on it.
func checkJSON(text []byte) error {
	var open []byte // of the objects and lists that have not ended: { or [
	begun := false  // the last of them has no member yet
	i := skipSpace(text, 0)
	for {
		if n := len(open); n > 0 && open[n-1] == '{' && !(begun && at(text, i) == '}') {
			end, err := checkString(text, i)
			if err != nil {
				return err
			}
			if i = skipSpace(text, end); at(text, i) != ':' {
				return unexpected(text, i, `":"`)
			}
			i, begun = skipSpace(text, i+1), false
		}
		switch c := at(text, i); {
		case c == '{' || c == '[':
			if open = append(open, c); len(open) > maxDepth {
				return errors.New("invalid JSON: more than " + strconv.Itoa(maxDepth) + " levels")
			}
			i, begun = skipSpace(text, i+1), true
			continue
		case begun && (c == ']' && open[len(open)-1] == '[' || c == '}' && open[len(open)-1] == '{'): // it is empty
		default:
			end, err := checkScalar(text, i)
			if err != nil {
				return err
			}
			i = skipSpace(text, end)
			begun = false
		}
		for { // after a value
			n := len(open)
			if n == 0 {
				if i < len(text) {
					return errors.New("unexpected text after the JSON object, at byte " + strconv.Itoa(i+1))
				}
				return nil
			}
			if c := at(text, i); c == open[n-1]+2 { // } follows {, and ] follows [, by two
				open = open[:n-1]
				i, begun = skipSpace(text, i+1), false
				continue
			} else if c != ',' {
				return unexpected(text, i, `"," or "`+string(rune(open[n-1]+2))+`"`)
			}
			i = skipSpace(text, i+1)
			break
		}
	}
}

// at returns a byte of text, or 0 behind its end, which is no part of JSON.
func at(text []byte, i int) byte {
	if i < len(text) {
		return text[i]
	}
	return 0
}

func unexpected(text []byte, i int, want string) error {
	if i >= len(text) {
		return errors.New("invalid JSON: unexpected end")
	}
	c, _ := utf8.DecodeRune(text[i:])
	return errors.New("invalid JSON at byte " + strconv.Itoa(i+1) + ": want " + want + ", got " + strconv.QuoteRune(c))
}

// checkScalar returns the end of a value that is neither an object nor a list.
func checkScalar(text []byte, i int) (end int, err error) {
	c := at(text, i)
	switch c {
	case '"':
		return checkString(text, i)
	case 't':
		return checkWord(text, i, "true")
	case 'f':
		return checkWord(text, i, "false")
	case 'n':
		return checkWord(text, i, "null")
	}
	if c != '-' && !isDigit(c) {
		return 0, unexpected(text, i, "a value")
	}
	if c == '-' {
		i++
	}
	if at(text, i) == '0' {
		i++
	} else if i, err = checkDigits(text, i); err != nil {
		return 0, err
	}
	if at(text, i) == '.' {
		if i, err = checkDigits(text, i+1); err != nil {
			return 0, err
		}
	}
	if c := at(text, i); c == 'e' || c == 'E' {
		if i++; at(text, i) == '+' || at(text, i) == '-' {
			i++
		}
		return checkDigits(text, i)
	}
	return i, nil
}

func checkDigits(text []byte, i int) (end int, err error) {
	if !isDigit(at(text, i)) {
		return 0, unexpected(text, i, "a digit")
	}
	for isDigit(at(text, i)) {
		i++
	}
	return i, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func checkWord(text []byte, i int, word string) (end int, err error) {
	for j := range len(word) {
		if at(text, i+j) != word[j] {
			return 0, unexpected(text, i+j, word)
		}
	}
	return i + len(word), nil
}

func checkString(text []byte, i int) (end int, err error) {
	if at(text, i) != '"' {
		return 0, unexpected(text, i, "a string")
	}
	for i++; ; i++ {
		switch c := at(text, i); {
		case c == '"':
			return i + 1, nil
		case c < ' ':
			return 0, unexpected(text, i, `a character or "`)
		case c != '\\':
			continue
		}
		if i++; at(text, i) == 'u' {
			for range 4 {
				if i++; hexDigit(at(text, i)) < 0 {
					return 0, unexpected(text, i, "a hexadecimal digit")
				}
			}
		} else if !contains(`"\/bfnrt`, at(text, i)) {
			return 0, unexpected(text, i, "an escape")
		}
	}
}

func hexDigit(c byte) rune {
	switch {
	case isDigit(c):
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}

func contains(set string, c byte) bool {
	for i := range len(set) {
		if set[i] == c {
			return true
		}
	}
	return false
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// endOfValue returns the end of the value at i.
func endOfValue(text []byte, i int) int {
	for depth := 0; ; {
		switch c := text[i]; {
		case c == '"':
			i = endOfString(text, i)
		case c == '{' || c == '[':
			depth++
			i++
		case c == '}' || c == ']':
			depth--
			i++
		case depth > 0 && (c == ',' || c == ':' || c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			i++
		default: // a word or a number
			for i < len(text) && !contains(" \t\r\n,]}", text[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

func endOfString(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// isNull reports whether the value at the start of text is null.
func isNull(text []byte) bool { return text[0] == 'n' }

// nameOf returns what a user calls the value at the start of text.
func nameOf(text []byte) string {
	switch text[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// numberText returns the number at the start of text.
func numberText(text []byte) string { return string(text[:endOfValue(text, 0)]) }

// parseString returns the string at the start of text, and the number of bytes that it takes. Like encoding/json, it replaces
// what is not UTF-8, and halves of surrogate pairs, by U+FFFD.
func parseString(text []byte) (s string, n int) {
	n = endOfString(text, 0)
	in := text[1 : n-1]
	plain := true
	for _, c := range in {
		plain = plain && c != '\\' && c < utf8.RuneSelf
	}
	if plain {
		return string(in), n
	}
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		if in[0] != '\\' {
			c, size := utf8.DecodeRune(in)
			out = utf8.AppendRune(out, c)
			in = in[size:]
			continue
		}
		c := in[1]
		in = in[2:]
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := parseHex(in)
			in = in[4:]
			if utf16.IsSurrogate(r) {
				pair := rune(utf8.RuneError)
				if len(in) >= 6 && in[0] == '\\' && in[1] == 'u' {
					pair = utf16.DecodeRune(r, parseHex(in[2:]))
				}
				if r = pair; r != utf8.RuneError {
					in = in[6:]
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return unsafe.String(unsafe.SliceData(out), len(out)), n
}

func parseHex(text []byte) (r rune) {
	for _, c := range text[:4] {
		r = r<<4 | hexDigit(c)
	}
	return r
}
