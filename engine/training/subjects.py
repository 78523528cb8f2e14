"""What the training prompts are about. The held-out lists share no entry with the training ones."""

TOPICS = (
    "bread baking", "tidal pools", "night trains", "beekeeping", "the water cycle", "chess openings", "volcanoes", "solar panels",
    "public libraries", "mountain rescue", "coral reefs", "printing presses", "bicycle repair", "the Roman roads", "tea ceremonies",
    "black holes", "migrating birds", "jazz music", "home insulation", "vaccines", "lighthouses", "desert plants", "submarines",
    "sign language", "kite making", "city parks", "the human heart", "sourdough starters", "electric motors", "medieval castles",
    "rain forests", "remote work", "wool and knitting", "the Silk Road", "earthquakes", "olive oil", "stage lighting", "paper folding",
    "glaciers", "school gardens", "steam engines", "river deltas", "honey badgers", "weather forecasts", "mosaics", "maple syrup",
    "trade winds", "recycling", "marathon training", "the printing of money", "bridges", "whales", "opera", "compost", "satellites",
    "hand tools", "street food", "the periodic table", "hiking boots", "fireflies", "watchmaking", "democracy", "photosynthesis",
    "second-hand shops", "sleep", "canals", "wind farms", "puppet theatre", "the Moon", "rice farming", "typography", "ant colonies",
    "swimming lessons", "perfume", "railway signals", "fossils", "cheese making", "emergency kits", "sculpture", "bats", "inflation",
    "caves", "budget travel", "tides", "robot vacuum cleaners", "the Renaissance", "elevators", "peat bogs", "board games", "gravity",
    "school buses", "thunderstorms", "pottery", "the Nile", "antibiotics", "museum guides", "stretching exercises", "penguins",
    "coffee roasting", "encyclopedias", "urban foxes", "hydrogen", "harbour pilots", "note taking", "wolves", "dental care",
    "stained glass", "telescopes", "first aid", "spices", "job interviews", "the stock market", "ice hockey", "mushrooms",
    "public speaking", "windmills", "cartography", "time zones", "horses", "plastics", "friendship", "vegetable soup", "the Aztecs",
    "computer mice", "violins", "dolphins", "wildfires", "map reading", "the Olympic Games", "sugar", "sea turtles", "gardening in winter",
)  # fmt: skip
HELD_OUT_TOPICS = (
    "sailing boats", "the Great Wall", "owls", "candle making", "subway systems", "electric cars", "ancient Egypt", "chocolate",
    "rainbows", "basketball", "kitchen knives", "the Sahara", "drones", "garden ponds", "letters and stamps", "tigers",
)  # fmt: skip

CODE_TASKS = (
    "reverses the words of a sentence", "checks whether a string is a palindrome", "returns the n-th Fibonacci number",
    "counts how often each word occurs in a text", "merges two sorted lists", "finds the largest element of a list",
    "removes duplicates from a list while keeping the order", "computes the factorial of a number", "sorts a list by bubble sort",
    "checks whether a number is prime", "converts Celsius to Fahrenheit", "reads a CSV file and prints each row",
    "flattens a nested list", "returns the greatest common divisor of two numbers", "validates an e-mail address",
    "computes the average of a list of numbers", "finds the two numbers in a list that add up to a target",
    "transposes a matrix", "counts the vowels in a string", "performs a binary search in a sorted list",
    "groups a list of dictionaries by a key", "formats a number of seconds as hours, minutes and seconds",
    "generates a random password", "computes the dot product of two vectors", "checks whether brackets in a string are balanced",
    "returns the longest word in a sentence", "rotates a list by k places", "converts a Roman numeral to an integer",
    "downloads a web page and returns its title", "writes a list of names to a text file", "computes the nth triangular number",
    "finds all files with a given extension in a folder", "capitalises the first letter of every word",
    "checks whether two strings are anagrams", "splits a list into chunks of size n", "computes the distance between two points",
    "finds the missing number in a list from 1 to n", "converts a binary string to a decimal number",
    "removes all punctuation from a string", "computes compound interest", "returns the intersection of two lists",
    "prints a multiplication table", "computes the median of a list", "replaces every space in a string with a dash",
    "parses a date in the form YYYY-MM-DD", "sums the digits of a number", "builds a dictionary from two lists",
    "checks whether a year is a leap year", "prints a triangle of stars", "finds the second largest number in a list",
)  # fmt: skip
HELD_OUT_CODE_TASKS = (
    "swaps the keys and values of a dictionary", "counts the lines in a file", "finds the smallest number in a list",
    "computes the power of a number without using the power operator", "checks whether a list is sorted",
    "returns the even numbers of a list", "joins a list of strings with commas", "computes the area of a circle",
)  # fmt: skip

CODE_CLASSES = (
    "stack", "queue", "bank account", "shopping cart", "linked list", "library catalogue", "timer", "student record", "parking lot",
    "playlist", "to-do list", "bank of counters", "temperature sensor", "deck of cards", "tic-tac-toe board", "phone book",
    "vending machine", "matrix", "simple cache", "rectangle and its area", "employee with a salary", "binary tree", "inventory of a shop",
    "message queue", "chess piece", "vector in two dimensions", "elevator", "text editor buffer", "coffee machine", "weather station",
)  # fmt: skip
HELD_OUT_CODE_CLASSES = ("traffic light", "hotel booking", "graph with nodes and edges", "alarm clock")

THINGS = (
    "book", "customer", "recipe", "flight", "employee", "movie", "car", "hotel room", "song", "student", "order", "city", "plant",
    "museum ticket", "sensor reading", "invoice", "football team", "house", "bicycle", "online course", "restaurant", "bank account",
    "weather report", "train journey", "mobile phone", "painting", "doctor's appointment", "garden tool", "news article", "country",
    "chess player", "delivery van", "concert", "video game", "warehouse", "coffee machine", "school class", "river", "laptop", "app user",
)  # fmt: skip
HELD_OUT_THINGS = ("dog", "airport", "camera", "bakery", "lighthouse", "mountain", "podcast", "library card")

NAMES = (
    "Anna", "Tom", "Maria", "Ben", "Sofia", "Omar", "Lena", "Jack", "Priya", "Carlos", "Emma", "Noah", "Yuki", "Peter", "Fatima", "Lucas",
    "Nina", "David", "Grace", "Ivan", "Chloe", "Ahmed", "Julia", "Sam", "Mei", "Oscar", "Ruth", "Leo", "Amara", "Hugo",
)  # fmt: skip
HELD_OUT_NAMES = ("Clara", "Felix", "Ingrid", "Mateo", "Zoe", "Walter")

GOODS = (
    "apples", "pencils", "marbles", "stickers", "books", "cookies", "coins", "tickets", "balloons", "eggs", "bottles", "flowers",
    "stamps", "chairs", "cupcakes", "toy cars", "notebooks", "oranges", "shells", "candles", "bricks", "buttons", "plates", "cards",
)  # fmt: skip
HELD_OUT_GOODS = ("lemons", "keys", "towels", "magazines", "batteries", "ropes")
