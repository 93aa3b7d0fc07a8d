//go:build !race

package plugins

const raceDetector = false
