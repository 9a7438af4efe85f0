// The part of the scheduler that hands out items that were held back until their source is known.
#include <algorithm>
#include <iterator>
