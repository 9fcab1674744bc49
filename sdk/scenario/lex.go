package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const blank = " \t\r\n"

// trimLine returns a line without the white space around it. A line is printable UTF-8 text.
func trimLine(line string) (string, error) {
	if len(line) > MaxLine {
		return "", fmt.Errorf("a line of %d bytes, at most %d are allowed", len(line), MaxLine)
	}
	line = strings.Trim(line, blank)
	if !utf8.ValidString(line) {
		return "", fmt.Errorf("invalid UTF-8")
	}
	for i, r := range line {
		if r != '\t' && !unicode.IsPrint(r) {
			return "", fmt.Errorf(`byte %d: %q is not printable: write it as \u%04x in a word in double quotes`, i+1, r, r)
		}
	}
	return line, nil
}

// Printable returns r if a line can have it, and U+FFFD otherwise. It is for strings.Map.
func Printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return utf8.RuneError
}

// parseStatement parses the words of a line. A line without any, or with a comment only, has no verb.
func parseStatement(line string) (Statement, error) {
	var s Statement
	for words := 0; ; words++ {
		line = strings.TrimLeft(line, blank)
		if line == "" || line[0] == '#' {
			return s, nil
		}
		if words == MaxWords {
			return s, fmt.Errorf("more than %d words", MaxWords)
		}
		w, rest, err := nextWord(line)
		if err != nil {
			return s, err
		}
		line = rest
		switch {
		case s.Verb == "" && (w.quoted || w.option || !isVerb(w.text)):
			return s, fmt.Errorf("a line must begin with a verb of lower-case letters and hyphens, with # or with >")
		case s.Verb == "":
			s.Verb = w.text
		case !w.option:
			s.Args = append(s.Args, w.text)
		default:
			if _, twice := s.Option(w.key); twice {
				return s, fmt.Errorf("%s: option %s= twice", s.Verb, w.key)
			}
			s.Options = append(s.Options, Option{Key: w.key, Value: w.text})
		}
	}
}

// word is a word of a statement, without its quotes.
type word struct {
	text   string
	quoted bool
	option bool   // key=text
	key    string // not empty if it is an option
}

// nextWord parses the word at the beginning of line, which is not empty.
func nextWord(line string) (w word, rest string, err error) {
	if end := strings.IndexAny(line, blank+"=\"`"); end > 0 && line[end] == '=' {
		w.option, w.key, line = true, line[:end], line[end+1:]
	}
	if line != "" && (line[0] == '"' || line[0] == '`') {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return w, "", fmt.Errorf("no Go string in double quotes or backquotes: %s", shorten(line))
		}
		if w.text, err = strconv.Unquote(quoted); err != nil || !utf8.ValidString(w.text) {
			return w, "", fmt.Errorf("not a Go string in UTF-8: %s", shorten(quoted))
		}
		w.quoted, rest = true, line[len(quoted):]
		if rest != "" && !strings.Contains(blank, rest[:1]) {
			return w, "", fmt.Errorf("white space must follow %s", shorten(quoted))
		}
		return w, rest, nil
	}
	end := strings.IndexAny(line, blank)
	if end < 0 {
		end = len(line)
	}
	w.text, rest = line[:end], line[end:]
	switch {
	case strings.ContainsAny(w.text, "\"`"):
		return w, "", fmt.Errorf("a quote inside of %s: put the whole word into double quotes or backquotes", shorten(w.text))
	case !w.option && strings.HasPrefix(w.text, "="):
		return w, "", fmt.Errorf("an option without a key: %s", shorten(w.text))
	}
	return w, rest, nil
}

func isVerb(text string) bool {
	for i, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c != '-' || i == 0) {
			return false
		}
	}
	return text != ""
}

// shorten returns the beginning of a text that may be long.
func shorten(text string) string {
	if len(text) <= 60 {
		return text
	}
	n := 60
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
